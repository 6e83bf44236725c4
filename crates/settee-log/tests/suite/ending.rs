//! Goal: a log that ends, stops or waits holds no resource that others need, and leaves nothing behind. Each
//! file checks one way in which it might.

mod blocking;
mod closing;
mod locking;
mod pool;
mod timers;
