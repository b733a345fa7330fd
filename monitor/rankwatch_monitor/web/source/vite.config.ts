import { defineConfig } from "vite";

// `npx vite` serves the source with a monitor behind it; `npm run build` writes what the wheel carries.
export default defineConfig({
  build: { outDir: "../static", emptyOutDir: true, target: "es2022", modulePreload: false, assetsInlineLimit: 0, minify: "terser", terserOptions: { module: true, ecma: 2020, compress: { passes: 2, keep_fargs: false } }, rolldownOptions: { input: ["index.html", "docs.html"], output: { minify: { mangle: { toplevel: true }, compress: { target: "es2022" } } } } },
  server: { proxy: { "/api": process.env.RANKWATCH_MONITOR ?? "http://127.0.0.1:9560" } },
});
