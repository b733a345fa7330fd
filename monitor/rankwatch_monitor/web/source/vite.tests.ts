import { readdirSync } from "node:fs";
import { defineConfig } from "vite";

// Node 20 does not read TypeScript: each test is bundled to plain JavaScript, then run by node's own test runner.
const tests = readdirSync(new URL("tests", import.meta.url)).filter((name) => name.endsWith(".test.ts"));

export default defineConfig({
  build: {
    ssr: true,
    outDir: "node_modules/.tests",
    emptyOutDir: true,
    rollupOptions: { input: Object.fromEntries(tests.map((name) => [name.replace(/\.ts$/, ""), `tests/${name}`])) },
  },
  logLevel: "warn",
});
