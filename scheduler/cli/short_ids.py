"""Ids of parked messages, as short as they can be told apart: what lists show, and verbs take."""

import os
from collections.abc import Iterable
from itertools import pairwise

SHORT = 8


def shortened(ids: Iterable[str]) -> dict[str, str]:
    """How each of these ids begins, to where no other of them begins so."""
    ordered = sorted(set(ids))
    least = dict.fromkeys(ordered, SHORT)
    for one, other in pairwise(ordered):
        common = len(os.path.commonprefix([one, other])) + 1
        least[one], least[other] = max(least[one], common), max(least[other], common)
    return {name: name[:length] for name, length in least.items()}
