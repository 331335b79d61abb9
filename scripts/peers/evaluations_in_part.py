"""Last evaluations that end early, of workers that trl_worker.py and trl_preferences.py speak to."""

#: Nats for a target token, or of a row of answers, by which a rival is better on each row, and rows that are evaluated for it.
BETTER_BY, ROWS = 0.2, 40
#: Relative distance of a loss from that over all rows: messages have losses of rows as f32.
WITHIN = 1e-5


class Wrong(Exception):
    """An evaluation that does not end as it should."""


def ended_early(worker, number, recipe, plan):
    """Trains a recipe twice, the second time beside a rival that is as much better on every row. Returns the rows of that evaluation.

    The loss is then the one over all rows, whichever are gone through: that of a row depends on no others. Raises `Wrong`.
    """
    plan = {**plan, "train": {**plan["train"], "evaluation_rows": ROWS}}
    whole = worker.run(number, recipe, plan, pairing={})
    loss, rows = whole.evaluations[-1]["loss"], whole.rows
    if rows is None or len(rows["losses"]) != ROWS:
        raise Wrong(f"an evaluation without a rival tells the losses of its rows so: {rows}")
    weights = rows["target_tokens"]
    better = [one - BETTER_BY * weight for one, weight in zip(rows["losses"], weights)]
    rival = {"loss": loss - BETTER_BY, "rows": {"target_tokens": weights, "losses": better}}
    part = worker.run(number + 1, recipe, plan, pairing={"rival": rival})
    if [step["loss"] for step in part.steps] != [step["loss"] for step in whole.steps]:
        raise Wrong(f"a rival changes the steps of a training from {whole.steps} to {part.steps}")
    metrics = part.ended["state"]["metrics"]
    found, count, of = part.evaluations[-1]["loss"], metrics.get("loss_rows"), metrics.get("loss_rows_in_all")
    if count is None or not count < of == ROWS or part.rows is not None:
        raise Wrong(f"beside a rival that is better by {BETTER_BY} on each row {count} of {of} rows are evaluated")
    if abs(found - loss) > WITHIN * abs(loss) or metrics["loss"] != found:
        raise Wrong(f"the loss on {count:.0f} of {ROWS} rows is {found}, and that over all of them {loss}")
    return int(count)
