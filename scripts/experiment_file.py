"""What configs/experiments/*.toml, and tables.toml beside rows, may have.

docs/experiments.md says what steps are, the first lines of scripts/render-results what tables and
figures are.
"""
import json
import re
import tomllib

SHOWN = {"name", "step", "where", "join", "title"}
TABLES, LISTS = {"variables", "scale", "files"}, {"step", "table", "figure"}
ENTRIES = {  # kind -> what an entry may have, what it needs
    "step": ({"id", "name", "command", "each", "take", "rows", "lines"}, {"id", "name"}),
    "table": (SHOWN | {"rows", "columns", "values", "over", "plain", "per", "digits", "labels"},
              {"name"}),
    "figure": (SHOWN | {"x", "y", "series", "over", "labels", "x_label", "y_label", "logarithmic"},
               {"name", "title", "x", "y"}),
}


class Wrong(Exception):
    """What a user reads, in one line."""


def check(table, where, known, needed=frozenset()):
    if not isinstance(table, dict):
        raise Wrong(f"{where}: wanted a table")
    wrong = [f"unknown key {key}" for key in sorted(set(table) - known)]
    wrong += [f"no {key}" for key in sorted(needed - set(table))]
    if wrong:
        raise Wrong(f"{where}: {', '.join(wrong)}")


def must_be(kind, table, key, where):
    if not isinstance(table.get(key, kind()), kind):
        what = {dict: "table", list: "list", str: "text"}[kind]
        raise Wrong(f"{where}: {key} must be a {what}")


def read(path):
    """The tables of the file, all keys known."""
    try:
        file = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:  # not there, no text, no TOML
        raise Wrong(f"{path}: {error}") from None
    check(file, path, {"title", "paper", "about"} | TABLES | LISTS)
    for key in TABLES | LISTS:
        must_be(dict if key in TABLES else list, file, key, path)
    for kind, (known, needed) in ENTRIES.items():
        for entry in file.get(kind, []):
            where = f"{path}: {kind} {entry.get('id', entry.get('name', ''))}"
            check(entry, where, known, needed)
            for key in ("id", "name", "command", "lines"):
                must_be(str, entry, key, where)
            for key in ("each", "take", "where", "over", "per", "labels"):
                must_be(dict, entry, key, where)
    for name, entry in file.get("files", {}).items():
        check(entry, f"{path}: [files] {name}", {"path", "fetch"}, {"path"})
    return file


def text_of(value):
    return value if isinstance(value, str) else json.dumps(value, default=str)


def expand(text, variables, where, depth=0):
    """The text with the variables' values for {names}, and in those other variables'."""
    if depth == 8:
        raise Wrong(f'{where}: the variables in "{text}" refer to each other')

    def value(match):
        if match[1] not in variables:
            raise Wrong(f"{where}: no variable {match[0]}")
        return expand(variables[match[1]], variables, where, depth + 1)
    return re.sub(r"\{(?!runs\})([^{}]*)\}", value, text)


def words_of(command, variables, where):
    """{name} is a part of one word, {name...} any number of words."""
    texts = [expand(word.replace("...}", "}"), variables, where) for word in command.split()]
    many = [word.endswith("...}") for word in command.split()]
    return sum([text.split() if split else [text] for text, split in zip(texts, many) if text], [])


def combinations(each, lists, where):
    """Of the axes' values; a value may be a table of variables, the values the name of a list."""
    every = [{}]
    for axis in sorted(each):
        values = lists.get(each[axis]) if isinstance(each[axis], str) else each[axis]
        if not isinstance(values, list) or not values:
            raise Wrong(f"{where}: each.{axis} must be a list, or the name of one")
        tables = [value if isinstance(value, dict) else {axis: value} for value in values]
        if not all(axis in table for table in tables):
            raise Wrong(f"{where}: a value of each.{axis} has no {axis}")
        every = [before | {name: text_of(value) for name, value in table.items()}
                 for before in every for table in tables]
    return every


def variables_of(file, path, scale, settings):
    """The variables, and those that are lists."""
    if scale not in file.get("scale", {}):
        raise Wrong(f"{path}: has no scale {scale}")
    every = file.get("variables", {}) | file["scale"][scale]
    lists = {name: value for name, value in every.items() if isinstance(value, list)}
    texts = {name: text_of(value) for name, value in every.items() if name not in lists}
    texts |= {name: entry["path"] for name, entry in file.get("files", {}).items()}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or name not in lists | texts:
            raise Wrong(f"--set {setting}: {path} has no variable {name}; wanted NAME=VALUE")
        if name in lists:
            lists[name] = value.split()
        else:
            texts[name] = value
    texts["scale"] = scale
    return {name: expand(text, texts, path) for name, text in texts.items()}, lists
