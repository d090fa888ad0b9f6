// pytest in Pyodide, under Node. The repository is mounted, so no file is copied.
//
//     node tests/browser/run.mjs FOLDER ARGUMENTS...
//
// FOLDER has Pyodide and the wheels (pmpp.lab.publish.pyodide); the arguments are pytest's.

import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const [folder, ...given] = process.argv.slice(2);
const place = resolve(folder);
const repository = fileURLToPath(new URL("../..", import.meta.url));
const lock = JSON.parse(readFileSync(`${repository}/pmpp/lab/publish/pyodide.json`, "utf8"));
const settings = Object.entries(process.env).filter(([name]) => name.startsWith("PMPP_"));

let status = 1;
try {
  const { loadPyodide } = await import(pathToFileURL(`${place}/pyodide.mjs`));
  const env = { HOME: "/home/pyodide", ...Object.fromEntries(settings) };
  const python = await loadPyodide({ indexURL: `${place}/`, env });
  await python.loadPackage(lock.packages, { messageCallback: () => {} });
  const site = python.runPython("import site; site.getsitepackages()[0]");
  for (const name of Object.keys({ ...lock.wheels, ...lock.tests })) {
    python.unpackArchive(new Uint8Array(readFileSync(`${place}/${name}`)), "wheel", { extractDir: site });
  }
  python.FS.mkdirTree("/repository");
  python.FS.mount(python.FS.filesystems.NODEFS, { root: repository }, "/repository");
  python.globals.set("given", python.toPy(given));
  status = python.runPython(`
import os, sys
os.chdir("/repository")
sys.path.insert(0, "/repository")
sys.dont_write_bytecode = True
import pytest
int(pytest.main(["-p", "no:cacheprovider", *given]))
`);
} catch (error) {
  console.error(error.message); // the error itself comes with the whole source of Pyodide
}
process.exit(status);
