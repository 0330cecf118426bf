"""The YAML job file: strict, all problems at once, with their lines."""

import pytest

from cli.job_yaml import JobFileError, read

GOOD = b"name: digits\nrun: [python, train.py]\n"


def problems_in(data: bytes) -> list[str]:
    with pytest.raises(JobFileError) as caught:
        read(data, "job.yaml", "/home/ada")
    return str(caught.value).splitlines()


def test_all_problems_are_told_with_their_lines():
    data = b"""name: no
run:
  - python
  - 3
gpus: 2
workers: two
workers: 2
env:
  A: 1
  NO: yes
restart:
  max: 1000000000
  on_exit: 3
"""
    assert problems_in(data) == [
        "job.yaml:1: name: must be text, got the value false; put it in quotes if it is text",
        "job.yaml:4: run[1]: must be text, got a number; put it in quotes if it is text",
        "job.yaml:5: gpus: unknown key; did you mean 'gpus_per_worker'?",
        "job.yaml:6: workers: must be a whole number, got the text 'two'",
        "job.yaml:7: workers: key given twice, first on line 6",
        "job.yaml:9: env.A: must be text, got a number; put it in quotes if it is text",
        "job.yaml:10: env.NO: must be text, got a value; put it in quotes if it is text",
        "job.yaml:12: restart.max: must be at most 1000, got the number 1000000000",
        "job.yaml:13: restart.on_exit: must be a list, got the number 3",
    ]


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"", "job.yaml:1: the file has no job in it"),
        (b"# nothing\n---\n", "job.yaml:1: the file has no job in it"),
        (b"name: a\n\trun: b\n", "job.yaml:2: a tab: indent with spaces"),
        (b"name: a\nrun: \xff\n", "job.yaml:2: not UTF-8: byte 0xff; save the file as UTF-8"),
        (b"- a\n", "job.yaml:1: must be a map of keys and values, got a list"),
        (b"name: a\x07\n", "job.yaml:1: character U+0007 is not allowed in YAML"),
        (b"a: &a [*a]\n", "job.yaml:1: nested too deeply, or anchors that expand to too much"),
        (b"[" * 5000, "job.yaml:1: nested too deeply, or anchors that expand to too much"),
        (b"name: *nope\n", "job.yaml:1: not valid YAML: found undefined alias 'nope'"),
        (b"#" * 5_000_000, "job.yaml:1: the file has 5000000 bytes, the limit is 4194304"),
        (
            GOOD + b"workers: two\n",
            "job.yaml:3: workers: must be a whole number, got the text 'two'",
        ),
        (GOOD + b"workers: 0\n", "job.yaml:3: workers: must be at least 1, got the number 0"),
        (GOOD + b"workers: -1\n", "job.yaml:3: workers: must be at least 1, got the number -1"),
        (
            GOOD + b"workers: 1000000000\n",
            "job.yaml:3: workers: must be at most 4096, got the number 1000000000",
        ),
        (GOOD + b"workers: [1]\n", "job.yaml:3: workers: must be a whole number, got a list"),
        (
            GOOD + b"time_limit: 60\n",
            (
                "job.yaml:3: time_limit: must be a number and a unit (90s, 10m, 2h, 1d), "
                "got the number 60"
            ),
        ),
        (
            GOOD + b"grace: 1:30\n",
            (
                "job.yaml:3: grace: must be a number and a unit (90s, 10m, 2h, 1d), "
                "got the text '1:30'"
            ),
        ),
        (GOOD + b"env: !vault x\n", "job.yaml:3: env: tag '!vault' is not supported"),
        (GOOD + b"? [a]\n: b\n", "job.yaml:3: a key must be text, not a list or a map"),
    ],
)
def test_each_kind_of_mistake_is_told_with_its_line(data, line):
    assert line in problems_in(data)


def test_anchors_that_explode_are_refused_quickly():
    levels = [b"k0: &k0 [x]\n"] + [
        b"k%d: &k%d [%s]\n" % (i, i, b",".join([b"*k%d" % (i - 1)] * 10)) for i in range(1, 12)
    ]
    assert "anchors that expand" in problems_in(b"".join(levels))[0]


def test_a_syntax_error_does_not_hide_the_problems_before_it():
    lines = problems_in(GOOD + b"ps: -1\n---\nname: [\n")
    assert lines[0] == "job.yaml:3: ps: must be at least 0, got the number -1"
    assert lines[1].startswith("job.yaml:6: not valid YAML")


def test_several_documents_are_several_jobs():
    specs = read(GOOD + b"---\nname: other\nrun: make\n---\n", "job.yaml", "/home/ada")
    assert [(spec.name, spec.run) for spec in specs] == [
        ("digits", ("python", "train.py")),
        ("other", "make"),
    ]


def test_one_bad_document_refuses_the_whole_file():
    assert problems_in(GOOD + b"---\nrun: make\n") == ["job.yaml:4: name: is missing"]


def test_folders_are_made_absolute_from_where_the_user_is(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    text = GOOD + b"workdir: ~/code\ncheckpoint: {dir: ../ckpt}\n"
    [spec] = read(text, "job.yaml", "/data/ada")
    assert (spec.workdir, spec.checkpoint.dir) == ("/home/ada/code", "/data/ckpt")
    assert read(GOOD, "job.yaml", "/data/ada")[0].workdir == "/data/ada"


def test_anchors_quotes_and_a_byte_order_mark_are_fine():
    text = '\ufeffname: "07"\nrun: &r "x"\nlabels: {a: "1", b: *r}\nworkers: +2\n'
    [spec] = read(text.encode(), "job.yaml", "/")
    assert (spec.name, spec.labels, spec.workers) == ("07", {"a": "1", "b": "x"}, 2)


def test_text_in_blocks_and_any_script_is_kept_byte_for_byte():
    text = "name: 実験 🚀\nrun: |\n  echo \"$A\"\n  echo 'b'\nenv:\n  A: 'q\"$x'\n"
    [spec] = read(text.encode(), "job.yaml", "/")
    assert (spec.name, spec.run) == ("実験 🚀", "echo \"$A\"\necho 'b'\n")
    assert spec.env == {"A": 'q"$x'}
