"""Looking for secrets in places where they must not be."""

import traceback


def everything_about(error: BaseException | None) -> str:
    """What anybody might print of an error, with all that led to it."""
    told = ""
    while error is not None:
        told += f"{error!s}{error!r}{error.args!r}{vars(error)!r}"
        told += "".join(traceback.format_exception(error))
        error = error.__cause__ or error.__context__
    return told
