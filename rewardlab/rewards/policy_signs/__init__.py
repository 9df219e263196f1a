"""Signs that a policy has found out how to please its judge: measures of its answers and of what the judge says of them."""
