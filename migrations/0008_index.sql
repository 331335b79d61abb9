-- Indexes for the questions that people ask of large databases: lists of studies, whole dumps of one metric or param.

-- Wall time of a study's trials, which `studies` adds up; without it each trial's recipe is read from the disk.
create index trial_study_wall on trial (study_id, wall_s);

-- Trials by why they ended, for lists of failures; those without a reason take no room.
create index trial_reason on trial (study_id, reason) where reason is not null;

-- The last evaluation of each trial by its loss, for learning curves across trials.
create index evaluation_step_loss on evaluation (trial_id, step, loss, tokens);
