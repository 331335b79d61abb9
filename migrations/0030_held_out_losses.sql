-- Evaluations are compared row by row with the best one so far; a search that goes on has to know its rows.

-- Losses of the held-out rows of the best trainings so far, which the last evaluation of the next trial is compared with. The best of each length and kind of rows is kept.
create table held_out_losses (
    trial_id integer primary key references trial (id) on delete cascade, -- Trial that trained it.
    target_tokens text not null, -- JSON array: target tokens of each held-out row, in the order of the rows.
    losses text not null -- JSON array: cross-entropy summed over the target tokens of each row, in nats.
) strict;
