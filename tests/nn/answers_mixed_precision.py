"""Answers to the exercises of notebooks/105_mixed_precision.ipynb: wrong ones with their mistakes, and right ones."""

import numpy as np

# ----------------------------------------------------------------------------------------------------------- scaler


def never_grows(scale, good, finite, interval):
    return (scale, good + 1) if finite else (scale / 2, 0)


def grows_at_once(scale, good, finite, interval):
    return (scale * 2, 0) if finite else (scale / 2, 0)


def one_too_late(scale, good, finite, interval):
    if not finite:
        return scale / 2, 0
    return (scale * 2, 0) if good == interval else (scale, good + 1)


def goes_on_counting(scale, good, finite, interval):
    if not finite:
        return scale / 2, good
    return (scale * 2, 0) if good + 1 == interval else (scale, good + 1)


def counts_beyond(scale, good, finite, interval):
    """Doubles after 5, 10 and 15 good steps; what follows a back-off is right."""
    if not finite:
        return scale / 2, 0
    return (scale * 2 if (good + 1) % interval == 0 else scale), good + 1


def keeps_the_scale(scale, good, finite, interval):
    if not finite:
        return scale, 0
    return (scale * 2, 0) if good + 1 == interval else (scale, good + 1)


def counts_nothing(scale, good, finite, interval):
    if not finite:
        return scale / 2, 0
    return (scale * 2, 0) if good + 1 == interval else (scale, good)


def limited(scale, good, finite, interval):
    """Never below 1, as if a scale had to enlarge."""
    if not finite:
        return max(scale / 2, 1.0), 0
    return (scale * 2, 0) if good + 1 == interval else (scale, good + 1)


def capped(scale, good, finite, interval):
    """Never above 2**14."""
    if not finite:
        return scale / 2, 0
    return (min(scale * 2, 2.0**14), 0) if good + 1 == interval else (scale, good + 1)


def scale_alone(scale, good, finite, interval):
    return scale if finite else scale / 2


def nothing(*_):
    pass


def by_powers(scale, good, finite, interval):
    grown, count = divmod(good + 1, interval) if finite else (-1, 0)
    return [scale * 2.0**grown, count]


# ----------------------------------------------------------------------------------------------------------- master


def unscaled_in_16_bits(master, gradients, scale, rate):
    if np.isfinite(gradients).all():
        master -= np.float32(rate) * (gradients / np.float16(scale)).astype(np.float32)
    return master.astype(np.float16)


def weights_of_16_bits(master, gradients, scale, rate):
    wide = gradients.astype(np.float32) / scale
    if np.isfinite(wide).all():
        master[:] = master.astype(np.float16) - (rate * wide).astype(np.float16)
    return master.astype(np.float16)


def takes_every_step(master, gradients, scale, rate):
    master -= rate * (gradients.astype(np.float32) / scale)
    return master.astype(np.float16)


def leaves_out_the_bad_ones(master, gradients, scale, rate):
    wide = gradients.astype(np.float32) / scale
    master -= rate * np.where(np.isfinite(wide), wide, 0)
    return master.astype(np.float16)


def keeps_the_scale_in(master, gradients, scale, rate):
    wide = gradients.astype(np.float32)
    if np.isfinite(wide).all():
        master -= rate * wide
    return master.astype(np.float16)


def goes_uphill(master, gradients, scale, rate):
    wide = gradients.astype(np.float32)
    if np.isfinite(wide).all():
        master += rate * (wide / scale)
    return master.astype(np.float16)


def makes_another(master, gradients, scale, rate):
    wide = gradients.astype(np.float32)
    return (master - rate * (wide / scale)).astype(np.float16)


def returns_the_master(master, gradients, scale, rate):
    wide = gradients.astype(np.float32)
    if np.isfinite(wide).all():
        master -= rate * (wide / scale)
    return master


def returns_what_was(master, gradients, scale, rate):
    was, wide = master.astype(np.float16), gradients.astype(np.float32)
    if np.isfinite(wide).all():
        master -= rate * (wide / scale)
    return was


def overwrites(master, gradients, scale, rate):
    if np.isfinite(gradients).all():
        wide = gradients.astype(np.float32) / scale
        gradients[:] = 0
        master -= rate * wide
    return master.astype(np.float16)


def multiplied(master, gradients, scale, rate):
    """One factor for the whole."""
    if np.isfinite(gradients).all():
        np.subtract(master, gradients * np.float32(rate / scale), out=master)
    return np.float16(master)


#: (exercise, answer, mistake, what is said)
WRONG = [
    ("mixed_precision/scaler", never_grows, "grows too late", "must be 16, was 8"),
    ("mixed_precision/scaler", grows_at_once, "grows too early", "must be 1024, was 2048"),
    ("mixed_precision/scaler", one_too_late, "grows too late", "interval of 5"),
    ("mixed_precision/scaler", goes_on_counting, "count goes on", "not finite"),
    ("mixed_precision/scaler", counts_beyond, "count goes on", "must be 0, was 5"),
    ("mixed_precision/scaler", keeps_the_scale, "wrong back-off", "must become 512, was 1024"),
    ("mixed_precision/scaler", counts_nothing, "does not count", "must be 1, was 0"),
    ("mixed_precision/scaler", limited, "wrong back-off", "must become 0.25"),
    ("mixed_precision/scaler", capped, "wrong sequence", "of many"),
    ("mixed_precision/scaler", scale_alone, "wrong form", "two things"),
    ("mixed_precision/scaler", nothing, "not started", "None"),
    ("mixed_precision/master", unscaled_in_16_bits, "gradients vanish", "2\\*\\*-30"),
    ("mixed_precision/master", weights_of_16_bits, "updates are lost", "must be about 0.999, were 1.0"),
    ("mixed_precision/master", takes_every_step, "takes a bad step", "gradient of inf"),
    ("mixed_precision/master", leaves_out_the_bad_ones, "takes a bad step", "no weight may change"),
    ("mixed_precision/master", keeps_the_scale_in, "not unscaled", "1024 times too large"),
    ("mixed_precision/master", goes_uphill, "wrong step", r"must be \[0.75, 2.5\]"),
    ("mixed_precision/master", makes_another, "master is not changed", "write into them"),
    ("mixed_precision/master", returns_the_master, "wrong dtype", "float32"),
    ("mixed_precision/master", returns_what_was, "wrong weights", "as they now are"),
    ("mixed_precision/master", overwrites, "gradients change", "the caller's"),
    ("mixed_precision/master", nothing, "not started", "None"),
]

ALSO_RIGHT = [
    ("mixed_precision/scaler", by_powers),
    ("mixed_precision/master", multiplied),
]
