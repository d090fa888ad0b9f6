// Python in a browser's Pyodide, under Node. The repository is mounted, so no file is copied.
//
//     node tests/browser/run.mjs FOLDER MODULE ARGUMENTS...
//
// FOLDER has Pyodide and the wheels (pmpp.lab.publish.pyodide). It does what python -m MODULE ARGUMENTS... would.

import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const [folder, module, ...given] = process.argv.slice(2);
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
  python.globals.set("given", python.toPy([module, ...given]));
  status = python.runPython(`
import os, runpy, sys
os.chdir("/repository")
sys.path.insert(0, "/repository")
sys.dont_write_bytecode = True
sys.argv = list(given)
try:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    status = 0
except SystemExit as end:
    status = end.code if isinstance(end.code, int) else bool(end.code)
int(status)
`);
} catch (error) {
  console.error(error.message); // the error itself comes with the whole source of Pyodide
}
process.exit(status);
