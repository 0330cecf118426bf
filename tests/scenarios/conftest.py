"""`pytest tests/scenarios --rewrite` records what the scripts put out now; read the diff."""


def pytest_addoption(parser):
    parser.addoption(
        "--rewrite", action="store_true", help="record the outputs of tests/scenarios afresh"
    )
