//! The lists of `$in`, `$nin` and `$all`, sorted once, so that a value is looked up instead of being compared
//! with each.

use super::constant::{Constant, Order};
use super::raw::Raw;

/// The constants of a list.
#[derive(Debug, Clone)]
pub(super) struct Constants {
    /// Sorted by [`Order::Exact`], which also sorts by [`Order::Bytes`]; without duplicates.
    sorted: Vec<Constant>,
    /// Indexes in `sorted`, sorted by [`Order::Collated`].
    by_collation: Vec<u32>,
    /// Whether the list had one element.
    is_single: bool,
}

impl Constants {
    pub(super) fn new(mut list: Vec<Constant>) -> Constants {
        let is_single = list.len() == 1;
        list.sort_unstable_by(|one, other| one.order(other, Order::Exact));
        list.dedup_by(|one, other| one.order(other, Order::Exact).is_eq());
        let count = u32::try_from(list.len()).expect("a selector's text is shorter");
        let mut by_collation: Vec<u32> = (0..count).collect();
        by_collation.sort_by(|one, other| list[*one as usize].order(&list[*other as usize], Order::Collated));
        Constants { sorted: list, by_collation, is_single }
    }

    /// Whether `value` equals one of them in this order.
    pub(super) fn has(&self, value: Raw<'_>, order: Order) -> bool {
        match order {
            Order::Collated => {
                let constant = |place: &u32| &self.sorted[*place as usize];
                let compare = |place: &u32| constant(place).order_of(value, order).reverse();
                self.by_collation.binary_search_by(compare).is_ok()
            }
            Order::Bytes | Order::Exact => self.place(value, order).is_some(),
        }
    }

    fn place(&self, value: Raw<'_>, order: Order) -> Option<usize> {
        self.sorted.binary_search_by(|constant| constant.order_of(value, order).reverse()).ok()
    }

    /// Whether an array contains all of them, or is the only one.
    pub(super) fn all_in(&self, array: Raw<'_>) -> bool {
        match &self.sorted[..] {
            [] => return false,
            [only @ Constant::Array(_)] if self.is_single && only.is(array, false) => return true,
            _ => {}
        }
        let mut is_there = vec![false; self.sorted.len()];
        let mut missing = self.sorted.len();
        for element in array.elements() {
            let Some(place) = self.place(element, Order::Exact) else { continue };
            // A malformed string compares as an empty one.
            if !is_there[place] && self.sorted[place].is(element, true) {
                is_there[place] = true;
                missing -= 1;
                if missing == 0 {
                    return true;
                }
            }
        }
        false
    }
}
