"""A numpy Generator every word of which comes from the operating system.

Rejection keeps quiet about the proposals that it turned down. Were they made by numpy's own generators, which are no
ciphers, one published proposal of several doubles could give away the seed, and with it the others
(``docs/proofs/exact-samplers.md``, remark 6). Here each word is a fresh one, so that proposals are independent of
each other whoever looks at one of them.
"""

import ctypes
import threading
from typing import Any

import numpy as np

from pdips.privacy.noise import RandomBits

BLOCK = 1024
ALL_ONES = 2**64 - 1

_Word = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)
_HalfWord = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p)
_Double = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p)


class _Interface(ctypes.Structure):
    """What numpy calls ``bitgen_t`` (numpy/random/bitgen.h)."""

    _fields_ = (
        ("state", ctypes.c_void_p),
        ("next_uint64", _Word),
        ("next_uint32", _HalfWord),
        ("next_double", _Double),
        ("next_raw", _Word),
    )


class Source:
    """Words of :class:`RandomBits`, one after the other, each handed out once.

    Attributes
    ----------
    failure : BaseException or None
        What went wrong while numpy was asking; numpy can't be told, so :meth:`check` must be called afterwards.
    """

    def __init__(self, bits: RandomBits) -> None:
        self.failure: BaseException | None = None
        self._bits = bits
        self._left: list[int] = []
        self._stopgap = 0

    def __deepcopy__(self, memo: Any) -> "Source":
        return self

    def word(self) -> int:
        """Return the next word."""
        try:
            if not self._left:
                self._left = self._bits.words(BLOCK, np.uint64).tolist()
            return self._left.pop()
        except BaseException as failure:  # noqa: BLE001 - C can't pass it on; ``check`` raises it again
            self.failure = failure
            self._stopgap = (self._stopgap + 0x9E3779B97F4A7C15) & ALL_ONES  # lets numpy end; nothing of it is used
            return self._stopgap

    def check(self) -> None:
        """Raise what went wrong since the generator was made, an interrupt from the keyboard included."""
        if self.failure is not None:
            raise self.failure


class WordGenerator:
    """A numpy bit generator without a state: copies draw from the same source, so no word is used twice."""

    def __init__(self, source: Source) -> None:
        self._seed_seq = source  # PyTensor copies a generator by ``type(old)(deepcopy(old._seed_seq))`` and its state
        self.state: dict[str, Any] = {"bit_generator": type(self).__name__}
        self.lock = threading.RLock()
        self._interface = _Interface(
            None,
            _Word(lambda _: source.word()),
            _HalfWord(lambda _: source.word() >> 32),
            _Double(lambda _: (source.word() >> 11) * 2.0**-53),
            _Word(lambda _: source.word()),
        )
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        self.capsule = make(ctypes.addressof(self._interface), b"BitGenerator", None)


def generator_of(bits: RandomBits) -> tuple[np.random.Generator, Source]:
    """Return a Generator that draws from ``bits``, and the source to be checked after each use.

    Parameters
    ----------
    bits : RandomBits
        Source of uniform bits.

    Returns
    -------
    numpy.random.Generator
        About half a microsecond a word.
    Source
        Its words.
    """
    source = Source(bits)
    return np.random.Generator(WordGenerator(source)), source  # type: ignore[arg-type]
