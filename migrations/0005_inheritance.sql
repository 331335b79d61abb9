-- Values that a trial took over from another one: settings that cannot change them had been measured already.

-- What a trial did not measure itself.
create table inheritance (
    trial_id integer not null references trial (id) on delete cascade, -- Trial that took the values over.
    part text not null check (part in ('cost', 'loss')), -- `cost`: throughput, memory and times; `loss`: loss and accuracy.
    source_id integer not null references trial (id) on delete cascade, -- Trial that measured them.
    primary key (trial_id, part)
) strict, without rowid;

-- Deleting a source looks for those that took over from it.
create index inheritance_source on inheritance (source_id);

-- What each trial took over, by name and number.
create view trial_inherited as
select
    study.name as study,                -- Name of the study.
    trial.number as trial,              -- Number of the trial that took the values over.
    inheritance.part as part,           -- `cost` (throughput, memory and times) or `loss` (loss and accuracy).
    source.number as source             -- Number of the trial that measured them.
from inheritance
join trial on trial.id = inheritance.trial_id
join trial as source on source.id = inheritance.source_id
join study on study.id = trial.study_id;
