"""A prefix cache on disk: all of it comes back, or the file is refused; an older file is never harmed."""

import os
import stat

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import cachequant_lib as cq

PROMPTS = [("", [1, 2, 3, 4]), ("", [1, 2, 5]), (("model", "ann"), [1, 2, 3]), ("", [7]), ("", [1, 2, 5, 6, 7])]


def rows_of(ids, name=""):
    return np.array([hash((name, *ids[: i + 1])) % 2**31 for i in range(len(ids))], np.float64)[:, None]


def filled(**options):
    cache = cq.PrefixCache(**options)
    for name, ids in PROMPTS:
        cache.insert(ids, rows_of(ids, name), name)
    return cache


def contents(cache):
    """Every prompt that ends in a leaf, oldest use first, with its rows."""
    found = []
    for name, root in cache._roots.items():
        for node in root.walk():
            if not node.children:
                path = list(node.path())[::-1]
                ids = np.frombuffer(b"".join(part.tokens for part in path), np.int64).tolist()
                rows = node.pool.gather(np.concatenate([part.rows for part in path])).tolist()
                found.append((node.used, name, ids, rows))
    return [entry[1:] for entry in sorted(found, key=lambda entry: entry[0])]


def test_everything_comes_back_in_the_same_order(tmp_path):
    cache, fresh = filled(), cq.PrefixCache()
    with cache.match([1, 2, 3, 4, 5]):  # a pinned prompt is saved like any other
        assert cache.save(tmp_path / "cache.safetensors", "fp") == cache.stats.num_tokens == 11
        saved = contents(cache)
    assert fresh.load(str(tmp_path / "cache.safetensors"), "fp") == 11
    fresh.check_invariants()
    assert contents(fresh) == saved
    assert fresh.bytes_used == cache.bytes_used
    for name, ids in PROMPTS:
        with fresh.match([*ids, 0], name) as match:
            assert (match.block().rows == rows_of(ids, name)).all()


def test_the_file_is_for_its_owner_only(tmp_path):
    filled().save(tmp_path / "x")
    assert os.name == "nt" or stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_smaller_cache_takes_what_was_used_last_and_evicts_nothing(tmp_path):
    filled().save(tmp_path / "x")
    small = cq.PrefixCache(8 * 7)
    small.insert([9], rows_of([9]))
    assert small.load(tmp_path / "x") == 6  # 1 2 5 6 7, then 7
    small.check_invariants()
    assert small.stats.evictions == 0
    assert [ids for _, ids, _ in contents(small)] == [[9], [7], [1, 2, 5, 6, 7]]


def test_loading_adds_to_what_is_there(tmp_path):
    filled().save(tmp_path / "x")
    cache = cq.PrefixCache()
    cache.insert([1, 2, 3, 8], np.zeros((4, 1)))
    assert cache.load(tmp_path / "x") == 8
    assert cache.load(tmp_path / "x") == 0
    with cache.match([1, 2, 3, 4, 5]) as match:
        assert (match.block().rows[:3] == 0).all()
        assert match.block().rows[3] == rows_of([1, 2, 3, 4])[3]
    cache.check_invariants()


def test_what_lost_its_end_was_used_when_its_end_was(tmp_path):
    cache, fresh = cq.PrefixCache(policy="lfu"), cq.PrefixCache()
    cache.insert([1], rows_of([1]))
    cache.insert([1, 2], rows_of([1, 2]))
    cache.insert([8], rows_of([8]))
    for ids in ([8, 0], [8, 0], [8, 0], [1, 2, 0]):
        cache.match(ids).release()
    cache.evict(1)  # the 2 was used last, but not often
    cache.save(tmp_path / "x")
    fresh.load(tmp_path / "x")
    assert [ids for _, ids, _ in contents(fresh)] == [[8], [1]]


def test_an_empty_cache_is_saved_too(tmp_path):
    assert cq.PrefixCache().save(tmp_path / "x") == 0
    assert cq.PrefixCache().load(tmp_path / "x") == 0


def test_it_is_a_safetensors_file(tmp_path):
    filled().save(tmp_path / "x")
    assert load_file(tmp_path / "x")["prompts"].tolist() == [[0, 5, 0], [0, 1, 0], [1, 3, 0], [0, 4, 2]]


def refused(path, match, fingerprint=""):
    cache = filled()
    before, stats = contents(cache), cache.stats
    with pytest.raises(cq.CacheError, match=match):
        cache.load(path, fingerprint)
    assert (contents(cache), cache.stats) == (before, stats)
    cache.check_invariants()


def test_another_models_file_is_refused(tmp_path):
    filled().save(tmp_path / "x", "abc")
    refused(tmp_path / "x", "was saved for 'abc', and '' was asked for")
    refused(tmp_path / "x", "was saved for 'abc', and 'abd' was asked for", "abd")


def test_other_rows_in_the_same_namespace_are_refused(tmp_path):
    other = cq.PrefixCache()
    other.insert([1], np.zeros((1, 3)))
    other.save(tmp_path / "x")
    refused(tmp_path / "x", "the file holds other rows for namespace ''")


def test_a_cut_file_is_refused_wherever_it_was_cut(tmp_path):
    filled().save(tmp_path / "x")
    whole = (tmp_path / "x").read_bytes()
    for length in [0, 1, 7, 8, 20, len(whole) // 2, len(whole) - 8, len(whole) - 1]:
        (tmp_path / "cut").write_bytes(whole[:length])
        refused(tmp_path / "cut", "cut is damaged or no saved prefix cache")


def test_one_changed_bit_is_enough(tmp_path):
    filled().save(tmp_path / "x")
    whole = bytearray((tmp_path / "x").read_bytes())
    header = 8 + int.from_bytes(whole[:8], "little")
    for place in range(header, len(whole), 13):
        whole[place] ^= 1
        (tmp_path / "bit").write_bytes(whole)
        refused(tmp_path / "bit", "bit is damaged")
        whole[place] ^= 1


def test_foreign_files_are_refused(tmp_path):
    save_file({"rows.0": np.zeros(3)}, tmp_path / "weights")
    refused(tmp_path / "weights", "is no saved prefix cache .* it says None")
    (tmp_path / "text").write_text("hello " * 100)
    refused(tmp_path / "text", "damaged or no saved prefix cache")
    with pytest.raises(FileNotFoundError):
        cq.PrefixCache().load(tmp_path / "nowhere")


@pytest.mark.parametrize("step", ["save_file", "replace", "fsync"])
def test_a_save_that_fails_leaves_the_older_file_alone(tmp_path, monkeypatch, step):
    cache, path = filled(), tmp_path / "x"
    cache.save(path)
    before = path.read_bytes()

    def fail(*args, **options):
        raise OSError("disk full")

    monkeypatch.setattr("safetensors.numpy.save_file" if step == "save_file" else f"os.{step}", fail)
    cache.insert([40, 41], rows_of([40, 41]))
    with pytest.raises(OSError, match="disk full"):
        cache.save(path)
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir()] == ["x"]
