#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Finds C++ files that use a name of the standard library whose header neither they nor headers of ours that they
include bring. Builds do not notice, because most headers are precompiled and files are compiled several at a time.

Usage: standard_headers.py ROOT. Prints one line per finding and exits 1 when there is any.
"""

import pathlib
import re
import sys

import source_tree

NAMES = {
    "algorithm": "all_of any_of binary_search clamp copy copy_n count_if equal equal_range fill fill_n find find_if "
                 "generate is_sorted lower_bound max max_element min min_element minmax_element mismatch none_of "
                 "nth_element partial_sort partition remove_if replace reverse rotate set_difference shuffle sort "
                 "stable_sort transform unique upper_bound",
    "array": "array", "atomic": "atomic atomic_flag", "chrono": "chrono",
    "cmath": "abs ceil exp fabs floor isfinite isinf isnan llround log log2 lround pow sqrt",
    "condition_variable": "condition_variable", "cstring": "memcmp memcpy memmove memset strcmp strlen",
    "deque": "deque", "filesystem": "filesystem", "fstream": "ifstream ofstream",
    "functional": "bind function greater hash less multiplies plus ref reference_wrapper",
    "future": "async future promise", "iostream": "cerr cin cout", "limits": "numeric_limits", "list": "list",
    "map": "map multimap",
    "memory": "enable_shared_from_this make_shared make_unique shared_ptr unique_ptr weak_ptr",
    "mutex": "call_once lock_guard mutex once_flag scoped_lock unique_lock",
    "numeric": "accumulate inner_product iota partial_sum reduce", "optional": "nullopt optional",
    "queue": "priority_queue queue",
    "random": "mt19937 mt19937_64 normal_distribution random_device uniform_int_distribution",
    "regex": "regex", "set": "multiset set", "span": "as_bytes as_writable_bytes span",
    "sstream": "istringstream ostringstream stringstream", "string": "stod stoi string to_string",
    "string_view": "string_view", "thread": "jthread thread", "tuple": "tie tuple",
    "unordered_map": "unordered_map", "unordered_set": "unordered_set",
    "variant": "holds_alternative variant visit", "vector": "vector",
}
HEADER_OF = {name: header for header, names in NAMES.items() for name in names.split()}
# Header: others that bring its names, too, by the standard or in every library there is.
BROUGHT_BY = {
    "algorithm": "functional random regex", "array": "functional map span string string_view tuple vector",
    "atomic": "condition_variable future memory mutex thread",
    "chrono": "condition_variable filesystem future mutex semaphore thread", "cmath": "random",
    "functional": "memory regex", "limits": "random", "map": "regex", "memory": "functional future thread",
    "mutex": "condition_variable future", "numeric": "random", "sstream": "iomanip regex",
    "string": "filesystem fstream iostream regex sstream stdexcept system_error", "string_view": "string",
    "thread": "future", "tuple": "functional map memory", "vector": "functional queue random regex",
}
GOOGLE_TEST = {"gtest/gtest.h", "gmock/gmock.h"}
# GoogleTest's pages name these as what its interface takes and returns.
BROUGHT_BY_GOOGLE_TEST = set("algorithm atomic cstring functional iostream limits map memory mutex optional set sstream "
                             "string string_view tuple variant vector".split())
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]', re.MULTILINE)
USE = re.compile(r"\bstd::(\w+)")


def brought(path, texts):
    """The headers that are not ours, included by a file of ours or by the headers of ours that it includes."""
    visited, found, waiting = set(), set(), [path]
    while waiting:
        current = waiting.pop()
        if current in visited:
            continue
        visited.add(current)
        for _, name in INCLUDE.findall(texts[current]):
            if name in texts:
                waiting.append(name)
            else:
                found.add(name)
    return found | BROUGHT_BY_GOOGLE_TEST if found & GOOGLE_TEST else found


def findings(texts):
    """texts: path to text of every C++ file of a tree."""
    found = []
    for path, text in sorted(texts.items()):
        have = brought(path, texts)
        for number, line in enumerate(text.splitlines(), 1):
            for name in USE.findall(line.split("//")[0]):
                header = HEADER_OF.get(name)
                if header is None or header in have or have & set(BROUGHT_BY.get(header, "").split()):
                    continue
                found.append(f"{path}:{number}: std::{name} without <{header}>")
                have.add(header)
    return found


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    paths = [path for path in source_tree.tracked_files(root)
             if pathlib.PurePosixPath(path).suffix in source_tree.SOURCE_SUFFIXES and (root / path).exists()]
    found = findings({path: (root / path).read_text() for path in paths})
    print("\n".join([*found, f"{len(found)} findings in {len(paths)} files"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
