-- The trial that a study's recommendation is compared with.

-- What people would have used without a search, as a trial.
create table baseline (
    study_id integer primary key references study (id) on delete cascade, -- Study.
    trial integer not null              -- Number of the trial.
) strict;
