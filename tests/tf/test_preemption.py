"""Real processes asked to stop at a random step and started again: the acceptance test."""

import time

import pytest

pytestmark = [pytest.mark.tf, pytest.mark.timeout(300)]

DIGITS = "examples/train_digits.py"
WORKERS = ("worker-0", "worker-1")
SERVED = ("ps-0", "worker-0", "worker-1", "chief-0")
SERVERS = SERVED[:3]
SERVED_BY_ONE = ("ps-0", "worker-0", "chief-0")


def last_lines(gang):
    return {role: gang.output(role).splitlines()[-1] for role in gang.processes}


@pytest.mark.parametrize("roles", [("worker-0",), WORKERS])
def test_a_preempted_training_ends_bit_identical_to_an_uninterrupted_one(start, chance, roles):
    whole = start(DIGITS, "--epochs", "3", folder="whole", roles=roles)
    assert whole.wait() == [0] * len(roles)
    step = 10 * chance.randint(1, 9)
    first = start(DIGITS, "--epochs", "3", "--step-ms", "30", roles=roles)
    first.wait_for("worker-0", f"step {step} ")
    time.sleep(chance.random() / 10)
    first.ask_to_stop(seconds_between=chance.random() / 10)
    assert first.wait() == [75] * len(roles), first.output(roles[-1])
    second = start(DIGITS, "--epochs", "3", roles=roles, attempt=2)
    assert second.wait() == [0] * len(roles), second.output(roles[-1])
    assert f"step {step} " not in second.output("worker-0")
    assert "done: loss" in last_lines(second)["worker-0"]
    assert last_lines(second) == last_lines(whole)


def test_a_custom_loop_with_parameter_servers_goes_on_where_it_stopped(start, chance):
    step = 10 * chance.randint(1, 5)
    first = start("examples/train_ps.py", "--steps", "5000", roles=SERVED)
    first.wait_for("chief-0", f"step {step} ")
    first.ask_to_stop()
    assert first.wait() == [75] * 4, first.output("chief-0")
    (saved,) = (first.folder / "saves").iterdir()
    steps = str(int(saved.name.removeprefix("step-")) + 30)
    second = start("examples/train_ps.py", "--steps", steps, roles=SERVED, attempt=2)
    assert second.wait("chief-0") == [0], second.output("chief-0")
    second.ask_to_stop()
    assert second.wait(*SERVERS) == [75] * 3
    assert f"starting at {saved.name.replace('-', ' ')}\n" in second.output("chief-0")
    assert "done: loss" in last_lines(second)["chief-0"]


def test_tf_keras_fit_with_parameter_servers_resumes_and_keras_3_is_refused(start, chance):
    script = "tests/tf/scripts/fit_with_servers.py"
    iterations = chance.randint(5, 45)
    first = start(script, roles=SERVED_BY_ONE)
    first.wait_for("chief-0", f"iterations {iterations}\n")
    first.ask_to_stop()
    assert first.wait() == [75] * 3, first.output("chief-0")
    (saved,) = (first.folder / "saves").iterdir()
    step = int(saved.name.removeprefix("step-"))
    second = start(script, roles=SERVED_BY_ONE, attempt=2)
    assert second.wait("chief-0") == [0], second.output("chief-0")
    lines = [line for line in second.output("chief-0").splitlines() if "iterations" in line]
    assert lines == [f"iterations {i}" for i in range(step + 1, 61)]
    assert (
        "refused: Keras 3 cannot train with fit under parameter servers: use tf_keras"
        in (last_lines(second)["chief-0"])
    )
