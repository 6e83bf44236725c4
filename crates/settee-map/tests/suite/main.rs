//! Tests of plans against the engine.

mod documents;
mod engine;
mod frame;
mod fuzz;
mod grammar;
mod members;
mod operators;
mod reference;
mod subset;
mod values;
