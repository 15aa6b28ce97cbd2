"""Start the program `scheduler`, also as `python -m scheduler`."""

import os
import sys

INTERRUPTED = 130  # the exit code of shells for Ctrl-C
CLOSING_TIMEOUT_S = 5.0


def main() -> None:
    """Run the command line, which takes a moment to be loaded."""
    code: object = 1
    try:
        from scheduler.cli.commands import main as run_command

        run_command()
        code = 0
    except KeyboardInterrupt:
        code = INTERRUPTED
        sys.exit(INTERRUPTED)
    except SystemExit as ending:
        code = ending.code
        raise
    finally:
        _end_despite_threads(code)


def _end_despite_threads(code: object) -> None:
    """End the process with its exit code after some seconds, if threads of the app do not end.

    Python would wait for each that is not a daemon.
    """
    import threading

    ours = threading.main_thread()
    left = [each.name for each in threading.enumerate() if not each.daemon and each is not ours]

    def end() -> None:
        names = ", ".join(left)
        try:
            sys.stderr.write(f"scheduler: These threads do not end and are abandoned: {names}.\n")
            sys.stdout.flush()
        finally:  # their reader may have ended
            os._exit(code if isinstance(code, int) else int(code is not None))

    if left:
        timer = threading.Timer(CLOSING_TIMEOUT_S, end)
        timer.daemon = True
        timer.start()


if __name__ == "__main__":
    main()
