"""Generate registration code for this package from files of other schedulers.

`crontab` and `celery` read the files, and run nothing. Their result is a
`Found`, from which `writing` makes the code. Notes list everything that is not carried over, with
its file and line.
"""
