// What a reader finds: asks the search of a built site, in its own worker, as a browser does.
// node search.js SITE QUERY...: prints {query: [page, ...]}, the best first.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [site, ...queries] = process.argv.slice(2);
const [SETUP, READY, QUERY] = [0, 1, 2];

let hear;
let answered;
globalThis.self = globalThis;
globalThis.addEventListener = (_, listener) => (hear = listener);
globalThis.postMessage = (message) => answered(message);

const ask = (type, data) =>
  new Promise((resolve) => {
    answered = resolve;
    hear({ data: { type, data } });
  });

const workers = path.join(site, "assets/javascripts/workers");
const [worker] = fs.readdirSync(workers).filter((name) => /^search\..*\.js$/.test(name));
vm.runInThisContext(fs.readFileSync(path.join(workers, worker), "utf8"));
const index = JSON.parse(fs.readFileSync(path.join(site, "search/search_index.json"), "utf8"));

(async () => {
  const { type } = await ask(SETUP, { ...index, options: { suggest: false } });
  if (type !== READY) throw new Error(`the search is not ready: ${type}`);
  const found = {};
  for (const query of queries) {
    const { data } = await ask(QUERY, query);
    // Each item is a page: itself or its best sections.
    found[query] = data.items.map(([best]) => best.location.split("#")[0]);
  }
  console.log(JSON.stringify(found));
})();
