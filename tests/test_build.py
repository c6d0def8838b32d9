import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import mmload
from mmload.build import build, fingerprint
from mmload.engines import LocalEngine
from mmload.errors import BuildError, RecipeError, SampleError, UsageError
from mmload.manifest import read
from mmload.recipe import BuildRecipe
from mmload.records import FieldSpec, Sample
from mmload.shards import chunk_rows, plan_shards
from mmload.staging import Staging
from mmload.store import Site, remove

EXACT = ({"step": "Resize", "size": [16, 20]},)


def photos(root, classes=3, each=5):
    random = np.random.default_rng(0)
    for c in range(classes):
        folder = root / f"class{c}"
        folder.mkdir(parents=True)
        for i in range(each):
            height, width = random.integers(12, 40, 2)
            pixels = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{i}.{'png' if i % 2 else 'jpg'}")
    return root


def recipe(root, out, **more):
    options = {"transforms": EXACT, "shard_bytes": 4000, **more}
    return BuildRecipe(kind="imagefolder", root=root, out=out, **options)


def tree(folder):
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def source(tmp_path):
    return photos(tmp_path / "photos")


def test_bytes_do_not_depend_on_threads_processes_or_folder(source, tmp_path):
    trees = []
    for i, more in enumerate([{"threads": 1}, {"threads": 2}, {"threads": 4}, {"processes": 2, "threads": 1}]):
        report = build(recipe(source, tmp_path / f"out{i}"), **more)
        assert report.built == 15
        trees.append(tree(tmp_path / f"out{i}"))
    assert all(other == trees[0] for other in trees)
    assert len(read(tmp_path / "out0").splits["train"].shards) > 3
    assert str(tmp_path) not in (tmp_path / "out0" / "dataset.json").read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out0", "out1", "out2", "out3", "photos"]


def test_rows_and_statistics_equal_a_plain_loop(source, tmp_path):
    from mmload.decode import Decoder
    from mmload.transforms import Chain

    build(recipe(source, tmp_path / "out"))
    split = mmload.open(tmp_path / "out")["train"]
    chain, rows = Chain(EXACT), split[:]
    files = sorted(path for path in source.rglob("*") if path.is_file())
    for row, path in enumerate(files):
        fields = {"images": Decoder()(np.fromfile(path, np.uint8))}
        assert torch.equal(rows.images[row], chain(Sample("", fields)).fields["images"])
        assert int(rows.targets[row]) == int(path.parent.name[-1])
    pixels = rows.images.double() / 255
    assert split.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist(), abs=1e-12)
    assert split.std == pytest.approx(pixels.std((0, 2, 3), correction=0).tolist(), abs=1e-9)
    assert split.record.class_counts == (5, 5, 5)
    lines = [json.loads(line) for line in (tmp_path / "out/train/samples.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == [path.relative_to(source).as_posix() for path in files]
    with Image.open(files[0]) as image:
        assert lines[0]["size"] == [image.height, image.width]


def test_shuffle_is_a_recorded_permutation(source, tmp_path):
    build(recipe(source, tmp_path / "plain"))
    build(recipe(source, tmp_path / "a", shuffle_seed=3), threads=1)
    build(recipe(source, tmp_path / "b", shuffle_seed=3), threads=4)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    assert read(tmp_path / "a").recipe["store"]["shuffle_seed"] == 3
    ids = [(tmp_path / name / "train/samples.jsonl").read_text().splitlines() for name in ("plain", "a")]
    assert ids[0] != ids[1]
    assert sorted(ids[0]) == sorted(ids[1])
    plain, shuffled = (mmload.open(tmp_path / name)["train"][:] for name in ("plain", "a"))
    for row, line in enumerate(ids[1]):
        assert torch.equal(shuffled.images[row], plain.images[ids[0].index(line)])


def test_a_finished_build_does_nothing_and_changes_are_said(source, tmp_path):
    out = tmp_path / "out"
    build(recipe(source, out))
    assert build(recipe(source, out)).built == 0
    with pytest.raises(BuildError, match="another recipe; add --overwrite"):
        build(recipe(source, out, shard_bytes=9000))
    (source / "class0" / "0.jpg").rename(source / "class0" / "new.jpg")
    with pytest.raises(BuildError, match="source has changed since; add --overwrite"):
        build(recipe(source, out))
    assert build(recipe(source, out), overwrite=True).built == 15
    assert "class0/new.jpg" in (out / "train/samples.jsonl").read_text()


def test_overwrite_never_removes_what_is_no_dataset(source, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").write_text("years of work")
    with pytest.raises(BuildError, match="is not a dataset"):
        build(recipe(source, home), overwrite=True)
    assert (home / "thesis.tex").exists()
    (home / "thesis.tex").unlink()
    assert build(recipe(source, home)).built == 15  # an empty folder is as good as none


def test_interrupted_builds_go_on_from_sealed_shards(source, tmp_path):
    build(recipe(source, tmp_path / "whole"))

    def stop(done, total):
        if done >= 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(recipe(source, tmp_path / "out"), threads=1, progress=stop)
    assert not (tmp_path / "out").exists()
    report = build(recipe(source, tmp_path / "out"))
    assert 0 < report.built < 15
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_an_unfinished_build_of_something_else_is_said(source, tmp_path):
    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(recipe(source, tmp_path / "out"), progress=stop)
    with pytest.raises(BuildError, match="unfinished build of another recipe; add --overwrite"):
        build(recipe(source, tmp_path / "out", shard_bytes=9000))
    (source / "class2" / "0.jpg").unlink()
    with pytest.raises(BuildError, match="a source that has changed since"):
        build(recipe(source, tmp_path / "out"))
    assert build(recipe(source, tmp_path / "out"), overwrite=True).built == 14


def test_a_second_build_into_one_place_is_refused(source, tmp_path):
    with (
        Staging((tmp_path / "out").resolve()),
        pytest.raises(BuildError, match="another build is writing"),
    ):
        build(recipe(source, tmp_path / "out"))


@pytest.mark.parametrize("complete", [True, False])
def test_a_kill_between_the_two_renames_of_a_swap_is_recovered(source, tmp_path, complete):
    out = (tmp_path / "out").resolve()
    build(recipe(source, out))
    before = tree(out)
    site = Site(tmp_path / ".out.building")
    build(recipe(source, tmp_path / "new", shard_bytes=9000))
    after = tree(tmp_path / "new")
    site.folder.mkdir()
    out.rename(site.folder / "replaced")
    if complete:
        (tmp_path / "new").rename(site.dataset)
    wanted = recipe(source, out, shard_bytes=9000 if complete else 4000)
    assert build(wanted).built == 0
    assert tree(out) == (after if complete else before)
    assert not site.folder.exists()


@pytest.mark.parametrize("removed", ["notes", "plan.json"])
def test_overwrite_again_after_a_kill_in_its_last_steps_does_nothing(source, tmp_path, monkeypatch, removed):
    """The new dataset stands; what was killed is the removal of the folder beside it, just before one of its parts."""
    out = tmp_path / "out"
    build(recipe(source, out))
    build(recipe(source, tmp_path / "new", shard_bytes=9000))

    def killed(path):
        if path.name == removed and (path.parent / "plan.json").exists():  # not so when the build begins
            raise KeyboardInterrupt
        remove(path)

    with monkeypatch.context() as patch:
        patch.setattr("mmload.staging.remove", killed)
        with pytest.raises(KeyboardInterrupt):
            build(recipe(source, out, shard_bytes=9000), overwrite=True)
    assert build(recipe(source, out, shard_bytes=9000), overwrite=True).built == 0
    assert tree(out) == tree(tmp_path / "new")
    assert not (tmp_path / ".out.building").exists()
    assert build(recipe(source, out, shard_bytes=9000), overwrite=True).built == 15


def test_overwrite_after_a_kill_before_the_first_shard_builds(source, tmp_path):
    build(recipe(source, tmp_path / "out"))
    with Staging((tmp_path / "out").resolve()) as staging:
        manifest = read(tmp_path / "out")
        staging.begin({"recipe": manifest.recipe, "fingerprint": manifest.fingerprint})
    assert build(recipe(source, tmp_path / "out"), overwrite=True).built == 15


def test_shards_whose_samples_were_all_skipped_have_no_rows_and_open(source, tmp_path):
    from tensordict import TensorDict

    for index in range(5):
        (source / "class0" / f"{index}.{'png' if index % 2 else 'jpg'}").write_bytes(b"broken")
    report = build(recipe(source, tmp_path / "out", shard_bytes=2 * (3 * 16 * 20 + 8)), on_error="skip")
    shards = report.manifest.splits["train"].shards
    assert [shard.rows for shard in shards] == [0, 0, 1, 2, 2, 2, 2, 1]
    for index, shard in enumerate(shards):
        read_back = TensorDict.load_memmap(tmp_path / "out" / "train" / f"{index:06d}")
        assert read_back.batch_size == torch.Size([shard.rows])
        assert read_back["images"].shape == (shard.rows, 3, 16, 20)
    split = mmload.open(tmp_path / "out")["train"]
    assert len(split[:]) == 10
    assert [len(shard) for shard in split.shards] == [shard.rows for shard in shards]


def test_fail_names_the_sample_and_skip_lists_it(source, tmp_path):
    (source / "class1" / "1.png").write_bytes(b"not a png")
    (source / "class0" / "0.jpg").write_bytes(b"")
    with pytest.raises(SampleError, match=r"class0/0.jpg: the file is empty; mend .* --on-error skip"):
        build(recipe(source, tmp_path / "out"))
    report = build(recipe(source, tmp_path / "out"), on_error="skip")
    record = report.manifest.splits["train"]
    assert record.rows == 13
    assert record.skipped_count == 2
    assert [name for name, _ in record.skipped] == ["class0/0.jpg", "class1/1.png"]
    lines = [json.loads(line) for line in (tmp_path / "out/train/skipped.jsonl").read_text().splitlines()]
    assert lines[0] == {"id": "class0/0.jpg", "reason": "the file is empty"}
    assert record.skipped_file.bytes == (tmp_path / "out/train/skipped.jsonl").stat().st_size
    assert record.class_counts == (4, 4, 5)
    assert len(mmload.open(tmp_path / "out")["train"][:].images) == 13
    with pytest.raises(BuildError, match="left out 2 samples"):
        build(recipe(source, tmp_path / "out"))
    build(recipe(source, tmp_path / "two"), on_error="skip", processes=2, threads=1)
    assert tree(tmp_path / "two") == tree(tmp_path / "out")


@pytest.mark.parametrize(("most", "fits"), [(1, False), (2, True), ("10%", False), ("14%", True)])
def test_max_errors(source, tmp_path, most, fits):
    for name in ("class1/1.png", "class2/4.jpg"):
        (source / name).write_bytes(b"broken")
    if fits:
        build(recipe(source, tmp_path / "out"), on_error="skip", max_errors=most)
    else:
        with pytest.raises(BuildError, match="more than --max-errors"):
            build(recipe(source, tmp_path / "out"), on_error="skip", max_errors=most)


def test_a_split_with_nothing_readable_is_an_error(source, tmp_path):
    for path in source.rglob("*.*"):
        path.write_bytes(b"broken")
    with pytest.raises(BuildError, match="not one sample can be read"):
        build(recipe(source, tmp_path / "out"), on_error="skip")


def test_wrong_arguments(source, tmp_path):
    with pytest.raises(UsageError, match="on-error is 'ignore'"):
        build(recipe(source, tmp_path / "out"), on_error="ignore")
    with pytest.raises(UsageError, match="max-errors is 'few'"):
        build(recipe(source, tmp_path / "out"), on_error="skip", max_errors="few")
    with pytest.raises(UsageError, match="max-errors is for"):
        build(recipe(source, tmp_path / "out"), max_errors=3)
    with pytest.raises(UsageError, match="threads is 0"):
        build(recipe(source, tmp_path / "out"), threads=0)
    with pytest.raises(RecipeError, match="no root or no out"):
        build(recipe(None, tmp_path / "out"))
    with pytest.raises(RecipeError, match="every row has one shape"):
        build(recipe(source, tmp_path / "out", transforms=()), on_error="skip")
    with pytest.raises(RecipeError, match="shuffle_seed is -1"):
        recipe(source, tmp_path / "out", shuffle_seed=-1)


def test_free_space_is_checked_before_the_work(source, tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("mmload.build.shutil.disk_usage", lambda path: usage)
    with pytest.raises(BuildError, match=r"needs .* more bytes at .*, 1,000 are free"):
        build(recipe(source, tmp_path / "out"))


def test_file_names_that_are_not_unicode(tmp_path):
    folder = photos(tmp_path / "photos", classes=1, each=1) / "class0"
    os.rename(bytes(folder / "0.jpg"), bytes(folder) + b"/\xff\xe9.jpg")
    build(recipe(tmp_path / "photos", tmp_path / "out"))
    line = (tmp_path / "out/train/samples.jsonl").read_text(encoding="utf-8")
    assert os.fsencode(json.loads(line)["id"]) == b"class0/\xff\xe9.jpg"


@given(
    samples=st.integers(0, 10**6),
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=3),
    shard_bytes=st.integers(1, 10**9),
)
def test_a_plan_covers_every_sample_once(samples, sizes, shard_bytes):
    fields = {f"f{i}": FieldSpec(dtype="float32", shape=(size, 3)) for i, size in enumerate(sizes)}
    row = sum(12 * size for size in sizes)
    if samples * row / shard_bytes > 2000:
        shard_bytes = samples * row
    plans = plan_shards("train", samples, fields, shard_bytes)
    assert [plan.index for plan in plans] == list(range(len(plans)))
    edges = [plan.start for plan in plans] + [samples]
    assert edges[0] == 0
    assert [plan.stop for plan in plans] == edges[1:]
    for plan in plans:
        assert plan.stop - plan.start == 1 or (plan.stop - plan.start) * row <= shard_bytes
    assert 1 <= chunk_rows(fields) <= 256


class Endless:
    """A split that kills its own worker process at one sample."""

    classes = ()

    def __init__(self, name):
        self.name = name

    def __len__(self):
        return 4

    def id(self, index):
        return str(index)

    def stamp(self, index):
        return ""

    def read(self, index):
        import multiprocessing

        if index == 2 and multiprocessing.parent_process() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return Sample(str(index), {"images": torch.full((1, 2, 2), index, dtype=torch.uint8)}, (2, 2))


def test_a_worker_that_is_killed_ends_the_build_with_its_cause(tmp_path, monkeypatch):
    monkeypatch.setattr("mmload.build.splits_of", lambda recipe: {"train": Endless("train")})
    began = time.monotonic()
    with pytest.raises(BuildError, match="a build worker died .signal SIGKILL, as when memory runs out"):
        build(recipe(tmp_path, tmp_path / "out", transforms=(), shard_bytes=4), processes=2, threads=1)
    assert time.monotonic() - began < 60
    report = build(recipe(tmp_path, tmp_path / "out", transforms=(), shard_bytes=4), processes=1)
    assert report.manifest.splits["train"].rows == 4


def test_a_source_that_cannot_be_sent_is_said(tmp_path, monkeypatch):
    split = Endless("train")
    split.hook = lambda: None
    monkeypatch.setattr("mmload.build.splits_of", lambda recipe: {"train": split})
    with pytest.raises(BuildError, match="cannot be sent to worker processes"):
        build(recipe(tmp_path, tmp_path / "out", transforms=(), shard_bytes=4), processes=2)


@pytest.mark.parametrize("count", [3, 2000])
def test_a_fingerprint_asks_each_sample_once(count):
    class Counting(Endless):
        def __init__(self):
            super().__init__("train")
            self.asked = []

        def __len__(self):
            return count

        def stamp(self, index):
            self.asked.append(index)
            return "same"

    split = Counting()
    first = fingerprint({"train": split})
    assert split.asked == list(range(count))
    split.stamp = lambda index: "changed" if index == 1 else "same"
    assert fingerprint({"train": split}) != first


def test_shards_open_without_mmload(source, tmp_path):
    build(recipe(source, tmp_path / "out"))
    rows = mmload.open(tmp_path / "out")["train"][:]
    code = f"""
        import sys, json, pathlib
        class Refuse:
            def find_spec(self, name, *rest):
                if name.split(".")[0] == "mmload":
                    raise ImportError("mmload is not here")
        sys.meta_path.insert(0, Refuse())
        import numpy, torch
        from tensordict import TensorDict
        folder = pathlib.Path({str(tmp_path / "out")!r})
        manifest = json.loads((folder / "dataset.json").read_text())
        sums = [0, 0]
        for i, shard in enumerate(manifest["splits"]["train"]["shards"]):
            part = folder / "train" / f"{{i:06d}}"
            read = TensorDict.load_memmap(part)
            assert read.batch_size == torch.Size([shard["rows"]]), read
            shape = (shard["rows"], *manifest["splits"]["train"]["fields"]["images"]["shape"])
            raw = numpy.memmap(part / "images.memmap", dtype="uint8", mode="r", shape=shape)
            assert (raw == read["images"].numpy()).all()
            sums[0] += int(read["images"].sum(dtype=torch.int64)); sums[1] += int(read["targets"].sum())
        print(*sums, "mmload" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-I", "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == [
        str(int(rows.images.sum(dtype=torch.int64))),
        str(int(rows.targets.sum())),
        "False",
    ], done.stderr


def test_engine_numbers():
    with pytest.raises(UsageError, match="processes is 0"):
        LocalEngine(processes=0)
    assert LocalEngine().run(None, [], None) == []


def test_a_destination_that_cannot_be_written(source, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match="cannot write beside"):
        build(recipe(source, Path(tmp_path / "file" / "out")))
