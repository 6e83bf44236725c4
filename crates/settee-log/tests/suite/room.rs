//! What is made ahead (room, zeros, the next segment) and removed (what was forgotten) harms nothing
//! that was promised, whatever fails. Each file says how it looks at one way in which it might.

mod forgetting;
mod late_chores;
mod preparing;
mod streams;
mod sync_errors;
mod zeros;
