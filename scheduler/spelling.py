"""What somebody may have meant who wrote a name that nothing has."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], *, likeness: float = 0.6) -> str | None:
    """The most similar of the known names; None: none of them is similar.

    Args:
        likeness: how similar it must be, from 0 to 1.
    """
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=likeness)
    return near[0] if near else None


def no_such(kind: str, name: str, known: Iterable[str]) -> str:
    """What to say of a name that nothing has; names the nearest that something has."""
    names = sorted(known)
    near = nearest(name, names)
    hint = f"did you mean {near!r}?" if near else f"there are: {', '.join(names) or 'none'}."
    return f"There is no {kind} {name!r}; {hint}"
