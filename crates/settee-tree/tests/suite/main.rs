//! The tree's tests, in one program: each module's head states its goal and its method.

mod common;
mod damage;
mod model;
mod power_loss;
mod threads;
