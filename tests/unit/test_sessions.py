from sonde.show.report.runs import place_of, start

MACHINE = {"environment": {"machine": {"host": "gauss"}}}


def test_a_session_that_went_on_says_from_where_and_where() -> None:
    assert start(MACHINE | {"from_epoch": None}) == "from the start"
    assert start(MACHINE | {"from_epoch": 3}) == "resumed after epoch 3 on gauss"
    node = MACHINE | {"from_epoch": 3, "node": "10.0.0.7/3f2a9c1d"}
    assert start(node) == "resumed after epoch 3 on gauss, node 10.0.0.7/3f2a9c1d"
    assert start({"from_epoch": 3}) == "resumed after epoch 3"
    assert place_of({}) is None
