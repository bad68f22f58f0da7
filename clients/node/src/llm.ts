/** Budgets of tokens and money for calls of language models. */

export { Budget, BudgetCall, BudgetError, type BudgetOptions, type CallEstimate } from "./budget.js";
export { type CallKey, budgetFetch } from "./budget-fetch.js";
export type { ChargedUsage, Usage } from "./usage.js";
