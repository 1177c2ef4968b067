from sonde.show.report.runs import session_machine, session_start

MACHINE = {"environment": {"machine": {"host": "gauss"}}}


def test_a_session_that_went_on_says_from_where_and_where() -> None:
    assert session_start(MACHINE | {"from_epoch": None}) == "from the start"
    assert session_start(MACHINE | {"from_epoch": 3}) == "resumed after epoch 3 on gauss"
    node = MACHINE | {"from_epoch": 3, "node": "10.0.0.7/3f2a9c1d"}
    assert session_start(node) == "resumed after epoch 3 on gauss, node 10.0.0.7/3f2a9c1d"
    assert session_start({"from_epoch": 3}) == "resumed after epoch 3"
    assert session_machine({}) is None
