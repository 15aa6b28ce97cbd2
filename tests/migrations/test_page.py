"""The steps of a guide, and each way over that there is."""

import re

import pytest

from tests.migrations.guides import GUIDES
from tests.reader import Command, File, Typed, Wait, steps_of

PAGE = """\
# Move

```python
# shop/jobs.py
work()
```

```python
a_script()
```

```python
# shop/jobs.py, continued
rest()
```

```console
$ make it \\
    quickly
made
$ end it
```

<!-- meanwhile: 65 s -->
<!-- meanwhile: until second 59 -->

```crontab
# crontab
* * * * * job
```
"""


def test_a_page_is_files_commands_and_waits_in_its_order() -> None:
    assert list(steps_of(PAGE)) == [
        File("shop/jobs.py", "# shop/jobs.py\nwork()\n"),
        Typed(8, Command("python -c 'a_script()\n'", "")),
        File("shop/jobs.py", "# shop/jobs.py, continued\nrest()\n", continued=True),
        Typed(17, Command("make it \\\n    quickly", "made\n")),
        Typed(17, Command("end it", "")),
        Wait(65),
        Wait(59, is_until=True),
        File("crontab", "# crontab\n* * * * * job\n"),
    ]


@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_migrates_there_and_back(name: str) -> None:
    guide = GUIDES[name]
    page = guide.page.read_text()
    assert (guide.project / "requirements.txt").exists()
    assert re.search(r"^#+ .*way back", page, re.MULTILINE | re.IGNORECASE)
    typed = [step.command.line for step in steps_of(page) if isinstance(step, Typed)]
    for command in "seed", "resume", "pause":
        assert any(f"scheduler {command} " in line for line in typed), command
    assert sum(isinstance(step, Wait) for step in steps_of(page)) >= 3
