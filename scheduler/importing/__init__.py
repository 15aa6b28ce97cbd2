"""What others' files say of jobs, as registration code for this package.

`crontab`, `cronjob` and `celery` each read one kind of file, and run nothing. What they find is a
`Found`, of which `writing` makes the code. What cannot be carried over is told with its file and
line.
"""
