-- What of a study's data is learnt, in words.

-- What is learnt of data, as the last search on them saw it.
create table data_learnt (
    data_set_id integer primary key references data_set (id) on delete cascade, -- Data.
    summary text not null -- Rows, the share of their tokens that is learnt, and whether answers end in a stop token.
) strict;
