"""Many nodes: what each leaves behind, and which device of them is slow, wrong or silent."""
