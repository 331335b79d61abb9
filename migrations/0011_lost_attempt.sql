-- Attempts at a trial whose process was lost: killed, hung, or gone with its machine. A trial that loses too many is set aside.

-- Lost attempts, in the order in which they were lost.
create table lost_attempt (
    id integer primary key,             -- Identity; later ones have larger ones.
    trial_id integer not null references trial (id) on delete cascade, -- Trial.
    attempt integer not null check (attempt >= 1), -- Which attempt it was.
    phase text check (phase in ('load', 'profile', 'train', 'evaluate')), -- Phase it was in.
    message text not null,              -- What is known of the process's end.
    wall_s real,                        -- Wall-clock seconds of the attempt.
    lost_at text not null default (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) -- When (UTC, ISO 8601).
) strict;

-- A trial's losses are counted whenever it loses another attempt.
create index lost_attempt_trial on lost_attempt (trial_id);

-- Lost attempts by study and trial.
create view trial_lost_attempt as
select
    study.name as study,                -- Name of the study.
    trial.number as trial,              -- Number of the trial within its study, from 0.
    lost_attempt.attempt as attempt,    -- Which attempt it was.
    lost_attempt.phase as phase,        -- Phase it was in.
    lost_attempt.message as message,    -- What is known of the process's end.
    lost_attempt.wall_s as wall_s,      -- Wall-clock seconds of the attempt.
    lost_attempt.lost_at as lost_at     -- When (UTC, ISO 8601).
from lost_attempt
join trial on trial.id = lost_attempt.trial_id
join study on study.id = trial.study_id
order by lost_attempt.id;
