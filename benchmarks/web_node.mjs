// A race in this process of Node, with the packages of its working folder. Argument: the race's folder.

import {readFile, writeFile} from "node:fs/promises";
import {createRequire} from "node:module";
import {dirname} from "node:path";
import {pathToFileURL} from "node:url";
import {race} from "./web_race.mjs";

const folder = process.argv[2];
const require = createRequire(pathToFileURL(`${process.cwd()}/`));
const found = await race(JSON.parse(await readFile(`${folder}/asked.json`, "utf-8")), {
  ort: require("onnxruntime-web"),
  tensorflow: () => {
    const {setWasmPaths} = require("@tensorflow/tfjs-backend-wasm");
    const paths = `${dirname(require.resolve("@tensorflow/tfjs-backend-wasm"))}/`;
    return {tf: require("@tensorflow/tfjs-core"), setWasmPaths, paths};
  },
  read: (file) => readFile(`${folder}/${file}`),
  load: (path) => import(pathToFileURL(`${folder}/${path}`)),
  save: (file, bytes) => writeFile(`${folder}/${file}`, bytes),
});
await writeFile(`${folder}/found.json`, JSON.stringify({...found, host: `Node ${process.version}`}));
process.exit(0);
