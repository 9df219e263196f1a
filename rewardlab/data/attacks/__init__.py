"""By what a worse answer might win: answers, texts within answers and edits of pictures, in families to test a judge on."""
