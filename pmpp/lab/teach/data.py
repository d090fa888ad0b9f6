"""Real inputs that come with a dependency: photographs and handwritten digits. Nothing is downloaded.

Every call returns fresh, writable, C-contiguous arrays.
"""

from __future__ import annotations

import numpy as np

__all__ = ["digits", "photograph", "photographs"]


def photographs() -> tuple[np.ndarray, np.ndarray]:
    """Two photographs of one size, shape (427, 640, 3), uint8, RGB: a Chinese pagoda and a flower.

    Source: scikit-learn's sample images. "china.jpg" by danielbuechele
    (https://www.flickr.com/photos/danielbuechele/6061409035) and "flower.jpg" by vultilion
    (https://www.flickr.com/photos/vultilion/6056698931), both CC BY 2.0.
    Raises ImportError without scikit-learn.
    """
    from sklearn.datasets import load_sample_image

    china, flower = (
        np.array(load_sample_image(name), dtype=np.uint8, order="C") for name in ("china.jpg", "flower.jpg")
    )
    return china, flower


def photograph() -> np.ndarray:
    """A portrait of Rear Admiral Grace Hopper, shape (600, 512, 3), uint8, RGB.

    Source: matplotlib's sample data; an official photograph by James S. Davis, United States Navy, 1984, in the public
    domain (https://commons.wikimedia.org/wiki/File:Commodore_Grace_M._Hopper,_USN_(covered).jpg).
    """
    from matplotlib import cbook
    from PIL import Image

    with cbook.get_sample_data("grace_hopper.jpg") as file, Image.open(file) as image:
        return np.array(image.convert("RGB"), dtype=np.uint8, order="C")


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Handwritten digits: images, shape (1797, 8, 8), float32, from 0 to 16; and labels, shape (1797,), int64, 0 to 9.

    Source: scikit-learn's copy of the test set of "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak,
    UCI Machine Learning Repository, 1998), CC BY 4.0.
    Raises ImportError without scikit-learn.
    """
    from sklearn.datasets import load_digits

    found = load_digits()
    return np.array(found.images, dtype=np.float32, order="C"), np.array(found.target, dtype=np.int64, order="C")
