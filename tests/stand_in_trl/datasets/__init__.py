"""A stand-in for datasets: rows of token ids, read from an Arrow stream as `peft-tune trial-files` writes it."""

import array
import json
import os
import struct

#: Columns with their codes of `array`.
COLUMNS = (("input_ids", "i"), ("attention_mask", "b"), ("labels", "q"))
RECORD_BATCH = 3


class Dataset:
    """Rows, each with its columns."""

    def __init__(self, rows):
        self.rows = rows

    @classmethod
    def from_file(cls, path, in_memory=False):
        with open(path, "rb") as file:
            return cls(list(rows_of(file.read())))

    @classmethod
    def from_list(cls, rows):
        return cls(rows)

    @property
    def column_names(self):
        return list(self.rows[0])

    def map(self, change):
        return Dataset([change(row) for row in self.rows])

    def select_columns(self, names):
        return Dataset([{name: row[name] for name in names} for row in self.rows])

    def flatten_indices(self):
        return self

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, key):
        if isinstance(key, int):
            return self.rows[key]
        if isinstance(key, str):
            return [row[key] for row in self.rows]
        return {name: [row[name] for row in self.rows[key]] for name in self.column_names}

    def select(self, numbers):
        return Dataset([self.rows[number] for number in numbers])


def load_dataset(folder):
    """The splits that the card in a folder names, each a list of files of JSON lines."""
    splits = {}
    with open(os.path.join(folder, "README.md"), encoding="utf-8") as card:
        for line in card:
            word, _, value = line.strip().removeprefix("- ").partition(": ")
            if word == "split":
                name = value
            elif word == "path":
                splits[name] = Dataset([row for path in json.loads(value) for row in lines_of(path)])
    return splits


def lines_of(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def rows_of(stream):
    """The rows of all record batches: of lists, each column with its offsets and its values."""
    at = 0
    while at + 8 <= len(stream):
        mark, size = struct.unpack_from("<Ii", stream, at)
        assert mark == 0xFFFFFFFF, f"no message at byte {at}"
        if size == 0:
            return
        message = Table.root(stream, at + 8)
        body = at + 8 + size
        if message.number(1, "B") == RECORD_BATCH:
            yield from rows_of_batch(stream, body, message.table(2))
        at = body + message.number(3, "q")


def rows_of_batch(stream, body, batch):
    count, buffers = batch.number(0, "q"), batch.pairs(2)

    def values(buffer, code):
        begin, size = buffers[buffer]
        found = array.array(code)
        found.frombytes(stream[body + begin : body + begin + size // found.itemsize * found.itemsize])
        return found.tolist()

    # Of each column: whether a list is there, where it begins, whether a value is there, and the values.
    columns = {name: (values(4 * place + 1, "i"), values(4 * place + 3, code)) for place, (name, code) in enumerate(COLUMNS)}
    for row in range(count):
        yield {name: found[starts[row] : starts[row + 1]] for name, (starts, found) in columns.items()}


class Table:
    """A table of a flat buffer."""

    def __init__(self, stream, at):
        self.stream, self.at = stream, at
        self.fields = at - struct.unpack_from("<i", stream, at)[0]

    @classmethod
    def root(cls, stream, at):
        return cls(stream, at + struct.unpack_from("<I", stream, at)[0])

    def place(self, field):
        size = struct.unpack_from("<H", self.stream, self.fields)[0]
        slot = 4 + 2 * field
        offset = struct.unpack_from("<H", self.stream, self.fields + slot)[0] if slot < size else 0
        return self.at + offset if offset else None

    def number(self, field, code):
        place = self.place(field)
        return 0 if place is None else struct.unpack_from("<" + code, self.stream, place)[0]

    def table(self, field):
        return Table.root(self.stream, self.place(field))

    def pairs(self, field):
        """The offsets and lengths of a vector of buffers."""
        place = self.place(field)
        start = place + struct.unpack_from("<I", self.stream, place)[0]
        count = struct.unpack_from("<I", self.stream, start)[0]
        return [struct.unpack_from("<qq", self.stream, start + 4 + 16 * number) for number in range(count)]
