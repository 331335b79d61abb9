-- Which earlier studies a study started from, so that a resumed search goes on with the same knowledge.

-- Trials of earlier studies that the sampler of a study knows.
create table warm_start (
    study_id integer not null references study (id) on delete cascade, -- Study that started from them.
    source text not null,               -- Name of the earlier study; it may have been deleted since.
    trials integer not null check (trials >= 0), -- How many of its first trials were taken.
    primary key (study_id, source)
) strict, without rowid;
