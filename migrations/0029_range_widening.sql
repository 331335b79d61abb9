-- A range that the best trials run up against is widened while a study is searched. The file's range stays what defines the study.

-- Ranges that searches widened by themselves, in the order in which they did: of each parameter the last one is searched now.
create table range_widening (
    study_id integer not null references study (id) on delete cascade, -- Study.
    position integer not null,          -- Counts from 0.
    parameter text not null,            -- Parameter whose range it is.
    low_before real not null,           -- Lower end before.
    high_before real not null check (high_before >= low_before), -- Upper end before.
    low real not null check (low <= low_before), -- Lower end from then on.
    high real not null check (high >= high_before), -- Upper end from then on.
    best_trial integer not null,        -- Number of the trial with the least loss by then, which sat on the edge.
    trainings integer not null,         -- Trainings that it was the best of.
    widened_at text not null default (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), -- When (UTC, ISO 8601).
    primary key (study_id, position)
) strict, without rowid;
