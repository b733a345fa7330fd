import { defineConfig, type Plugin } from "vite";

/** What of the libraries no view uses, and no minifier finds: uPlot hangs them at an object, Vite's helper waits for style sheets. */
const lean: Plugin = {
  name: "lean",
  enforce: "pre",
  load: (id) => (id === "\0vite/preload-helper.js" ? "export const __vitePreload = (load) => load();" : undefined),
  transform(code, id) {
    if (!id.endsWith("uPlot.esm.js")) return undefined;
    const unused = /^\t(\(paths\.(stepped|bars|spline) |uPlot\.join = ).*\n/gm;
    if (code.match(unused)?.length !== 4) this.error("uPlot has other names");
    return code.replace(unused, "");
  },
};

// `npx vite` serves the source with a monitor behind it; `npm run build` writes what the wheel carries. Scripts are
// minified by terser, then by the bundler: 1.6 kB of 120 less than by the bundler alone. None of terser's options that are
// unsafe: they dropped reads of signals, and broke the page of the API. Elements are made by `h`: 1.2 kB less than by `jsx`.
export default defineConfig({
  plugins: [lean],
  oxc: { jsx: { runtime: "classic", pragma: "h", pragmaFrag: "Fragment_" }, jsxInject: 'import { h, Fragment as Fragment_ } from "preact";' },
  build: { outDir: "../static", emptyOutDir: true, target: "es2022", modulePreload: false, assetsInlineLimit: 0, minify: "terser", terserOptions: { module: true, ecma: 2020, compress: { passes: 2, keep_fargs: false } }, rolldownOptions: { input: ["index.html", "docs.html"], output: { minify: { mangle: { toplevel: true }, compress: { target: "es2022" } } } } },
  server: { proxy: { "/api": process.env.RANKWATCH_MONITOR ?? "http://127.0.0.1:9560" } },
});
