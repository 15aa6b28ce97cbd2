"""Start the program `scheduler`, also as `python -m scheduler`."""

import sys

INTERRUPTED = 130  # the exit code of shells for Ctrl-C


def main() -> None:
    """Run the command line, which takes a moment to be loaded."""
    try:
        from scheduler.cli.commands import main as run_command

        run_command()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
