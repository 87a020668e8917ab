"""The files of a dump that is being written: complete shards, the manifest, and which process writes what."""

import fcntl
import hashlib
import json
import os
import re
import time
from contextlib import suppress
from typing import Any

FILE = re.compile(r"shard-(\d+)\.h5(\.tmp|\.json|\.json\.tmp)?")
LOCK = re.compile(r"\.rank-\d+\.lock")
# Between two polls for the files of other processes.
POLL_SECONDS = 0.1


class Shards:
    """The directory of a dump of `samples` samples, `per_shard` of them in a shard.

    Process `rank` of `ranks` writes the shards rank, rank + ranks, ... A shard is written to NAME.tmp and renamed
    when it is complete. Of one process the manifest lists it at once. Of several each leaves NAME.json with what
    the manifest will say of it, and rank 0 writes the manifest in finish(). Those of an interrupted dump are
    found again, by any number of processes. ValueError if another process has this part, or the dump is another.
    """

    def __init__(
        self,
        directory: str,
        header: dict[str, Any],
        samples: int,
        per_shard: int,
        rank: int,
        ranks: int,
        lengths: list[int] | None = None,
    ):
        if not 0 <= rank < ranks:
            raise ValueError(f"brine: rank is {rank}, must be from 0 to {ranks - 1}")
        self.directory, self.header, self.samples, self.per_shard = directory, header, samples, per_shard
        self.rank, self.ranks, self.count = rank, ranks, -(-samples // per_shard)
        self.of_dump = header | {"samples": samples, "samples_per_shard": per_shard}
        self.lengths = lengths  # of the samples of a ragged dump
        self.finished: dict[int, dict[str, Any]] = {}  # of this process, what the manifest says of them
        self.locks: list[int] = []
        self.own_lock = self.path(f".rank-{rank:05d}.lock")
        os.makedirs(directory, exist_ok=True)
        for name in sorted(os.listdir(directory)):
            if not FILE.fullmatch(name) and not name.startswith(("manifest.json", ".")):
                raise ValueError(f"{directory}: has {name}, which is not of a dump; give another directory")
        try:
            self.lock()
            self.resume()
        except BaseException:
            self.close()
            raise

    # ---- sizes

    @property
    def next(self) -> int:
        """The first shard that this process has to write, `count` if there is none."""
        numbers = range(self.rank, self.count, self.ranks)
        return next((number for number in numbers if number not in self.finished), self.count)

    def first(self, number: int) -> int:
        """The first sample of a shard; of the one after the last the number of all."""
        return min(number * self.per_shard, self.samples)

    def size(self, number: int) -> int:
        return self.first(number + 1) - self.first(number)

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    # ---- who writes

    def lock(self) -> None:
        """As the program has it, on the directory: a second writer would delete the shards of the first.

        Several processes share it, and each has a lock file.
        """
        self.locks.append(os.open(self.directory, os.O_RDONLY))
        try:
            fcntl.flock(self.locks[0], (fcntl.LOCK_EX if self.ranks == 1 else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            if self.ranks > 1:
                self.locks.append(os.open(self.own_lock, os.O_RDWR | os.O_CREAT, 0o666))
                fcntl.flock(self.locks[1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{self.directory}: another process is writing this dump") from None

    def close(self) -> None:
        if len(self.locks) > 1 and self.finished.keys() >= set(range(self.rank, self.count, self.ranks)):
            remove(self.own_lock)
        for lock in self.locks:
            os.close(lock)
        self.locks = []

    # ---- files that exist

    def resume(self) -> None:
        """Finds the complete shards of this process; its other files are deleted."""
        names: dict[int, list[str]] = {}
        for name in os.listdir(self.directory):
            if found := FILE.fullmatch(name):
                names.setdefault(int(found[1]), []).append(name)
        numbers = sorted(number for number in names if number % self.ranks == self.rank)
        # In this order: rank 0 of another run may be writing the manifest, and removes the files next to it afterwards.
        beside = {number: self.beside(number) for number in numbers}
        listed = self.listed()
        for number in numbers:
            entry = beside[number] or (listed or {}).get(number)
            if listed is None and entry is None and name_of(number) in names[number]:
                raise ValueError(
                    f"{self.directory}: has {name_of(number)} but no manifest.json; choose another directory"
                )
            if entry is not None and number < self.count and self.is_whole(entry):
                self.finished[number] = entry
                continue
            for name in names[number]:
                remove(self.path(name))
        if self.ranks == 1 and self.finished:
            self.write_manifest()

    def listed(self) -> dict[int, dict[str, Any]] | None:
        """The shards of the manifest, by number; None without a manifest."""
        found = self.read("manifest.json")
        if found is None:
            return None
        return {i: entry for i, entry in enumerate(found["shards"]) if entry["name"] == name_of(i)}

    def beside(self, number: int) -> dict[str, Any] | None:
        """What NAME.json says of a shard, if there is one."""
        found = self.read(name_of(number) + ".json")
        return None if found is None else found["shard"]

    def read(self, name: str) -> dict[str, Any] | None:
        """The manifest or a NAME.json, if it is there; ValueError if it is of another dump."""
        try:
            with open(self.path(name), encoding="utf-8") as file:
                found: dict[str, Any] = json.load(file)
        except FileNotFoundError:
            return None
        for key in (*self.of_dump, "model_layers"):
            if (has := found.get(key)) != (wanted := self.of_dump.get(key)):
                raise ValueError(f"{self.path(name)}: is of another dump: {key} is {has!r}, not {wanted!r}")
        return found

    def is_whole(self, entry: dict[str, Any]) -> bool:
        try:
            same = os.path.getsize(self.path(entry["name"])) == entry["bytes"]
            return same and self.sum_of(entry["name"]) == entry["sha256"]
        except FileNotFoundError:
            return False

    def sum_of(self, name: str) -> str:
        """SHA-256 of a file."""
        digest = hashlib.sha256()
        with open(self.path(name), "rb") as file:
            while part := file.read(1 << 20):
                digest.update(part)
        return digest.hexdigest()

    # ---- what is new

    def add(self, number: int) -> None:
        """NAME.tmp, which is closed, becomes a complete shard."""
        name = name_of(number)
        sync(self.path(name + ".tmp"))
        size, digest = os.path.getsize(self.path(name + ".tmp")), self.sum_of(name + ".tmp")
        entry = dict(name=name, bytes=size, sha256=digest, first=self.first(number), samples=self.size(number))
        if self.ranks > 1:
            self.leave(number, entry)
        os.replace(self.path(name + ".tmp"), self.path(name))
        sync(self.directory)
        self.finished[number] = entry
        if self.ranks == 1:
            self.write_manifest()

    def leave(self, number: int, entry: dict[str, Any]) -> None:
        write_whole(self.path(name_of(number) + ".json"), json.dumps(self.of_dump | {"shard": entry}).encode())

    def write_manifest(self) -> None:
        """Lists the shards that are complete without a gap. Those after one have their NAME.json."""
        end = next((n for n in range(self.count) if n not in self.finished), self.count)
        for number in self.finished:
            if number > end:
                self.leave(number, self.finished[number])
        shards = [self.finished[number] for number in range(end)]
        windows = [window for shard in shards for window in self.windows_of(shard["name"])]
        manifest = self.of_dump | {"shards": shards, "windows": windows}
        manifest |= {} if self.lengths is None else {"lengths": self.lengths}
        write_whole(self.path("manifest.json"), json.dumps(manifest, indent=2).encode() + b"\n")
        for number in range(end):
            remove(self.path(name_of(number) + ".json"))
        if end == self.count:
            for name in os.listdir(self.directory):
                if LOCK.fullmatch(name):
                    remove(self.path(name))

    def windows_of(self, name: str) -> list[int]:
        """The numbers of a shard's samples in their corpus, of one that has them."""
        if not self.header["classes"]:
            return []
        import h5py

        with h5py.File(self.path(name), "r") as file:
            return [int(window) for window in file["windows"]]

    def finish(self, timeout: float) -> None:
        """Of rank 0: waits until the other processes' shards are there, and writes the manifest.

        ValueError if none comes for `timeout` seconds.
        """
        if self.ranks == 1 or self.rank:
            return
        left = [n for n in range(self.count) if n not in self.finished]
        last = time.monotonic()
        while left:
            listed = self.listed() or {}
            for number in list(left):
                entry = self.beside(number) or listed.get(number)
                if entry is not None and self.is_whole(entry):
                    self.finished[number] = entry
                    left.remove(number)
                    last = time.monotonic()
            if left and time.monotonic() - last > timeout:
                raise ValueError(f"{self.directory}: {name_of(left[0])} of another process is missing")
            if left:
                time.sleep(POLL_SECONDS)
        self.write_manifest()


def name_of(number: int) -> str:
    return f"shard-{number:05d}.h5"


def remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.remove(path)


def sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: str, content: bytes) -> None:
    """Writes a file so that it is there as a whole or not at all."""
    with open(path + ".tmp", "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".tmp", path)
    sync(os.path.dirname(path) or ".")
