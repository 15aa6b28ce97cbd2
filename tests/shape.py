"""The shape of the package, read from its source: rooms and imports.

`python tests/shape.py [PACKAGE]` prints it; `test_architecture` checks it.
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1] / "scheduler"
PACKAGE = "scheduler"


@dataclass(frozen=True, slots=True)
class Module:
    """A file of the package.

    Attributes:
        name: as in `queues.journal`; of a package's `__init__`, its own name; of the root's,
            `__init__`.
        imports: the modules of this package that it imports while it runs.
    """

    name: str
    path: Path
    tree: ast.Module
    imports: frozenset[str]

    @property
    def room(self) -> str:
        """The subpackage that it stands in; a module of the root is a room of its own."""
        return self.name.split(".")[0]

    @property
    def lines(self) -> int:
        return len(self.path.read_text().splitlines())


def modules(root: Path = ROOT) -> dict[str, Module]:
    """The modules of the package, by name."""
    paths = {_name_of(path, root): path for path in sorted(root.rglob("*.py"))}
    trees = {name: ast.parse(path.read_text()) for name, path in paths.items()}
    return {
        name: Module(name, paths[name], tree, frozenset(_imported(tree, paths) - {name}))
        for name, tree in trees.items()
    }


def rooms(found: Mapping[str, Module]) -> dict[str, set[str]]:
    """The rooms that each room imports from."""
    arrows: dict[str, set[str]] = {module.room: set() for module in found.values()}
    for module in found.values():
        arrows[module.room] |= {found[name].room for name in module.imports} - {module.room}
    return arrows


def circles(arrows: Mapping[str, set[str]]) -> list[set[str]]:
    """Those that import each other, by whatever detour."""
    reach = {one: _reachable(one, arrows) for one in arrows}
    tied = {one: {other for other in reach[one] if one in reach[other]} for one in arrows}
    found = {frozenset(each) for each in tied.values() if each}
    return [set(each) for each in found]


def floors(arrows: Mapping[str, set[str]]) -> int:
    """How many imports stand on each other, at most: without circles only."""
    heights: dict[str, int] = {}

    def height(one: str) -> int:
        if one not in heights:
            heights[one] = 1 + max((height(below) for below in arrows[one]), default=0)
        return heights[one]

    return max(map(height, arrows))


def _name_of(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


def _imported(tree: ast.Module, known: Mapping[str, Path]) -> set[str]:
    found: set[str] = set()
    for node in _running(tree):
        match node:
            case ast.Import():
                found |= {alias.name for alias in node.names}
            case ast.ImportFrom(level=0, module=str(module)):
                found |= {f"{module}.{alias.name}" for alias in node.names}
            case ast.ImportFrom():
                raise ValueError(f"line {node.lineno}: write the import in full")
            case _:
                pass
    ours = {path for path in found if path.split(".")[0] == PACKAGE}
    return {_module_of(path, known) for path in ours}


def _running(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes that run: what stands under `if TYPE_CHECKING:` does not."""
    yield tree
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield from _running(child)


def _module_of(path: str, known: Mapping[str, Path]) -> str:
    """`scheduler.errors.UsageError` is of `errors`, `scheduler.Retry` of the package itself."""
    name = path.removeprefix(PACKAGE).removeprefix(".")
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name or "__init__"


def _reachable(start: str, arrows: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    ahead = list(arrows[start])
    while ahead:
        if (one := ahead.pop()) not in found:
            found.add(one)
            ahead += arrows[one]
    return found


def main() -> None:
    found = modules(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
    arrows = rooms(found)
    between_modules = {name: set(module.imports) for name, module in found.items()}
    ties = circles(arrows)
    code = [module for module in found.values() if not module.path.name.startswith("__init__")]
    lines = {
        "modules": len(code),
        "lines": sum(module.lines for module in found.values()),
        "rooms": len(arrows),
        "arrows between rooms": sum(map(len, arrows.values())),
        "floors of rooms": "-" if ties else floors(arrows),
        "circles of rooms": len(ties),
        "arrows between modules": sum(map(len, between_modules.values())),
        "circles of modules": len(circles(between_modules)),
    }
    for what, many in lines.items():
        sys.stdout.write(f"{what:24}{many}\n")


if __name__ == "__main__":
    main()
