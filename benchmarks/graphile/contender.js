// graphile-worker with everything in batches: `node contender.js URL serve|answer`.
//
// serve: be a worker until SIGTERM. answer: one line of JSON comes in, [verb, count], one goes out,
// the seconds that it took.

"use strict";
const { createRequire } = require("node:module");
const fs = require("node:fs");
const readline = require("node:readline");
const { setTimeout: sleep } = require("node:timers/promises");

// The packages are not beside this file.
const { run, makeWorkerUtils, Logger } = createRequire(process.env.BENCHMARK_MODULES)("graphile-worker");

const [url, mode] = process.argv.slice(2);
const BULK = 1000;
const pipe = Number(process.env.BENCHMARK_PIPE);
let ran = 0;

const shared = {
  connectionString: url,
  logger: new Logger(() => () => {}),
  preset: {
    worker: {
      concurrentJobs: 500,
      maxPoolSize: 10,
      localQueue: { size: 2000 },
      completeJobBatchDelay: 10,
      failJobBatchDelay: 10,
    },
  },
};
const taskList = {
  idle: async () => {
    ran += 1;
  },
  stamp: async () => {
    fs.writeSync(pipe, `${(performance.timeOrigin + performance.now()) / 1000}\n`);
  },
};

async function serve() {
  const runner = await run({ ...shared, taskList });
  await runner.promise;
}

async function answer() {
  const utils = await makeWorkerUtils(shared);
  await utils.migrate();
  const verbs = {
    open: async () => {},
    enqueue: (count) => add("idle", count),
    enqueue_stamp: (count) => add("stamp", count),
    left: async () => await left(),
    drain: async () => {
      const runner = await run({ ...shared, noHandleSignals: true, taskList });
      let before = -1;
      while (before !== ran || (await left())) {
        before = ran;
        await sleep(20);
      }
      const end = performance.now();
      await runner.stop();
      return end;
    },
  };
  async function add(task, count) {
    if (count === 1) return void (await utils.addJob(task, { number: 1 }));
    for (let sent = 0; sent < count; sent += BULK) {
      const length = Math.min(BULK, count - sent);
      await utils.addJobs(
        Array.from({ length }, (_, number) => ({ identifier: task, payload: { number } })),
      );
    }
  }
  async function left() {
    const query = "select count(*)::int as left from graphile_worker._private_jobs";
    const { rows } = await utils.withPgClient((client) => client.query(query));
    return rows[0].left;
  }
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [verb, count] = JSON.parse(line);
    const start = performance.now();
    const found = await verbs[verb](count);
    const end = verb === "drain" ? found : performance.now();
    const value = verb === "left" ? found : (end - start) / 1000;
    process.stdout.write(JSON.stringify(value) + "\n");
  }
  await utils.release();
}

({ serve, answer })[mode]();
