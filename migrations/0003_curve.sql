-- What happened inside a trial: the courses of training and of the held-out loss.

-- Optimizer steps. Keyed by what they are read by, so that a curve is one range of one b-tree.
create table step (
    trial_id integer not null references trial (id) on delete cascade, -- Trial.
    phase text not null check (phase in ('load', 'profile', 'train', 'evaluate')), -- `profile` (measuring) or `train`.
    step integer not null,              -- Number of the step within its phase, from 1.
    loss real,                          -- Training loss before the step, in nats per target token; null where not finite.
    learning_rate real,                 -- Learning rate of the step.
    grad_norm real,                     -- Global norm of the gradients before clipping; null where not finite.
    tokens integer not null,            -- Tokens that went through the model, padding not counted.
    target_tokens integer not null,     -- Tokens that counted in the loss.
    data_s real,                        -- Seconds waiting for the batch.
    forward_s real,                     -- Seconds of the forward pass.
    backward_s real,                    -- Seconds of the backward pass, recomputation included.
    optimizer_s real,                   -- Seconds of clipping and update.
    total_s real,                       -- Seconds of the whole step.
    primary key (trial_id, phase, step)
) strict, without rowid;

-- Evaluations on the held-out set.
create table evaluation (
    trial_id integer not null references trial (id) on delete cascade, -- Trial.
    step integer not null,              -- Optimizer steps taken before it.
    tokens integer not null,            -- Training tokens seen before it.
    loss real,                          -- Held-out loss, in nats per target token; null where not finite.
    accuracy real,                      -- Share of target tokens predicted right, in [0, 1].
    target_tokens integer not null,     -- Held-out tokens that counted.
    seconds real,                       -- Seconds that it took.
    primary key (trial_id, step)
) strict, without rowid;
