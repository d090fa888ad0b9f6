"""A plugin of pytest that makes a long run take less time. A test that runs sees nothing of it.

Where a GPU has compiled what a test would compile, the test is skipped: see `AttestedIsNotCompiled`.

`make test` loads it: ``python -m pytest -p tests.support.swift``. No test needs it, and no test imports it.
"""

import contextlib
import functools
import gc
import sys

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Searches for garbage are rarer from here on: memory is at hand, and time is not."""
    done = yield
    gc.set_threshold(50_000)  # instead of 700
    return done


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config):
    """Each process of xdist reads other modules for Hypothesis first, which then finds what the others have read.

    It parses all modules of the repository for their constants, in each process, and keeps these in files.
    """
    process = getattr(config, "workerinput", None)
    if process and "hypothesis" in sys.modules:
        with contextlib.suppress(ImportError):  # another version has them elsewhere, and reads all modules itself
            from hypothesis.internal.constants_ast import constants_from_module, is_local_module_file

            files = {getattr(module, "__file__", None) or "": module for module in list(sys.modules.values())}
            local = [files[file] for file in sorted(files) if file and is_local_module_file(file)]
            for module in local[int(process["workerid"].removeprefix("gw")) :: process["workercount"]]:
                constants_from_module(module)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """What a file of tests leaves behind stays: modules, tables, what is kept. It is not searched again.

    Otherwise a search takes half a second in the end, and tests of memory make dozens.
    """
    done = yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    return done


@pytest.fixture(scope="session", autouse=True)
def texts_are_measured_once():
    """Matplotlib keeps the size of a text for one renderer, and each figure has its own; the same words come again.

    What a font's properties are equal for, size among them, has one hash.
    """
    from matplotlib.backends.backend_agg import RendererAgg

    measure, kept = RendererAgg.get_text_width_height_descent, {}

    def measured(renderer, text, font, ismath):
        about = text, hash(font), ismath, renderer.dpi
        if about not in kept:
            kept[about] = measure(renderer, text, font, ismath)
        return kept[about]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RendererAgg, "get_text_width_height_descent", measured)
        yield


class CallsAreTypedOnce:
    """Numba asks for the type of a call of the same function with the same types again and again; the answer is kept.

    It tries one signature after another, in each kernel anew, and that takes a quarter of the time of compiling. What
    the answer depends on is the key: the context, the types, and the compiler's flags, which say among others for which
    GPU. Of the flags a copy is kept, for Numba changes them. A call that has no type is asked for again, as an
    intrinsic that is imported later may give it one. The PTX is the same: only the order of functions in it varies,
    as it does without this.
    """

    def __init__(self):
        self.patch = pytest.MonkeyPatch()
        self.waits = True

    def pytest_runtest_setup(self):
        """As soon as a test has imported the compiler. Nobody waits for an import that no test needs."""
        if self.waits and "numba.cuda.compiler" in sys.modules:
            self.waits = False
            self.begin()

    def pytest_unconfigure(self):
        self.patch.undo()

    def begin(self):
        from numba.core.types.functions import BaseFunction
        from numba.cuda.core.targetconfig import ConfigStack

        ask = BaseFunction.get_call_type

        def kept_type(function, context, args, kws):
            kept = vars(function).setdefault("_types_of_calls", {})
            flags = ConfigStack.top_or_none()
            about = context, tuple(args), tuple(kws.items()), flags
            answer = kept.get(about)
            if answer is None:
                about = *about[:3], flags and flags.copy()
                answer = kept[about] = ask(function, context, args, kws)
            return answer

        self.patch.setattr(BaseFunction, "get_call_type", kept_type)


class AttestedIsNotCompiled:
    """A test that asks for PTX is skipped there if it passed on a GPU with all sources as they are now.

    The rule is that of `tests.contract.attested`, for whole files of tests: all that one depends on counts. What a test
    does before it asks is done. The interpreter's own tests compare it with Numba, and change with it: they compile.
    """

    def __init__(self):
        self.patch = pytest.MonkeyPatch()
        self.waits, self.path = True, None

    def pytest_runtest_setup(self, item):
        self.path = item.path
        if self.waits and "tests.support.compiled" in sys.modules:
            self.waits = False
            self.begin(sys.modules["tests.support.compiled"])

    def pytest_unconfigure(self):
        self.patch.undo()

    def begin(self, compiled):
        from pmpp.lab.measure import stale
        from pmpp.lab.measure.sources import key_of
        from tests.contract.attested import ALL, SOURCES, attested

        @functools.cache
        def is_attested(path):
            name = SOURCES.name(path)
            if ALL or name.startswith(stale.INTERPRETED):
                return False
            now = SOURCES.digests(name).items()
            keys = {key_of(source, digest) for source, digest in now if not source.startswith(stale.INTERPRETER)}
            return any(keys <= then for then in attested(name))

        compile_anew = compiled._compiled

        def compile_or_skip(*about):
            if is_attested(self.path):
                pytest.skip("a GPU has compiled it as it is now")
            return compile_anew(*about)

        self.patch.setattr(compiled, "_compiled", compile_or_skip)


def tell_less(config):
    """A process of xdist does not report that a test begins, nor that what stands before and after it has passed.

    These are three messages of the seven of a test, each written, sent, read and handed to all plugins; and there
    are 39,000 tests. Whoever asks for the tests' names, for their times or for a file of results gets all messages.
    """
    asked = config.option
    if not hasattr(config, "workerinput") or asked.verbose > 0 or asked.durations is not None or asked.xmlpath:
        return
    [process] = [one for one in config.pluginmanager.get_plugins() if hasattr(one, "sendevent")]
    send = process.sendevent

    def send_what_matters(name, **about):
        around = name == "testreport" and about["data"]["when"] != "call"
        if name != "logstart" and not (around and about["data"]["outcome"] == "passed"):
            send(name, **about)

    process.sendevent = send_what_matters


def pytest_configure(config):
    config.pluginmanager.register(CallsAreTypedOnce())
    config.pluginmanager.register(AttestedIsNotCompiled())
    tell_less(config)
