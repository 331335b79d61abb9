-- What a trial's peak memory was expected to consist of, so that a page can show the parts beside what was measured.

-- Predicted bytes of a trial's peak memory by part.
create table prediction_part (
    trial_id integer not null references trial (id) on delete cascade, -- Trial.
    part text not null,                 -- Part, such as `base_weights`, `saved_activations` or `optimizer_state`.
    bytes integer not null check (bytes >= 0), -- Bytes at the highest moment of a step.
    primary key (trial_id, part)
) strict, without rowid;
